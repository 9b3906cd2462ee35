"""The faults of the proxy, in front of a small server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.openstack.proxy import Proxy, matches

LARGE = b"0123456789abcdef" * 500_000


class Target(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, str]] = []


class Handler(BaseHTTPRequestHandler):
    """Echoes the body of a request."""

    server: Target
    protocol_version = "HTTP/1.1"

    def _echo(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers["Host"]))
        body = self._chunks() if self.headers.get("Transfer-Encoding") else self._sized()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = _echo

    def _sized(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(target: Target) -> Iterator[Proxy]:
    with Proxy(f"http://127.0.0.1:{target.server_port}/base") as proxy:
        yield proxy


@pytest.fixture
def http(proxy: Proxy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, trust_env=False, timeout=30) as client:
        yield client


def test_request_is_forwarded_below_the_path_of_the_target(target: Target, proxy: Proxy, http: httpx.Client) -> None:
    assert http.get("/v1?limit=1").status_code == 200
    assert target.seen == [("GET", "/base/v1?limit=1", proxy.url.removeprefix("http://"))]


@pytest.mark.parametrize("content", [b"", b"short", LARGE, [LARGE, b"end"]], ids=["empty", "short", "long", "chunked"])
def test_body_is_forwarded_both_ways(http: httpx.Client, content: bytes | list[bytes]) -> None:
    assert http.put("/", content=content).content == (content if isinstance(content, bytes) else b"".join(content))


def test_answer_is_delayed(http: httpx.Client, proxy: Proxy) -> None:
    proxy.delay(0.3, matches("GET"))
    began = time.monotonic()
    http.post("/")
    middle = time.monotonic()
    http.get("/")
    assert time.monotonic() - middle >= 0.3 > middle - began


def test_failed_request_does_not_reach_the_service(target: Target, http: httpx.Client, proxy: Proxy) -> None:
    proxy.fail(503, matches("POST"), times=1)
    assert [http.post("/", content=LARGE).status_code, http.post("/").status_code] == [503, 200]
    assert len(target.seen) == 1


def test_answer_of_an_executed_request_is_replaced(target: Target, http: httpx.Client, proxy: Proxy) -> None:
    proxy.fail(500, after_service=True)
    assert http.get("/").status_code == 500
    assert len(target.seen) == 1


@pytest.mark.parametrize("after_service", [False, True])
def test_connection_is_dropped(target: Target, http: httpx.Client, proxy: Proxy, after_service: bool) -> None:
    proxy.drop(matches(path="/lost"), after_service=after_service)
    with pytest.raises(httpx.TransportError):
        http.get("/lost")
    assert len(target.seen) == after_service
    assert http.get("/kept").status_code == 200


def test_request_is_held_until_it_is_released(target: Target, http: httpx.Client, proxy: Proxy) -> None:
    held = proxy.hold()
    thread = threading.Thread(target=http.get, args=("/",))
    thread.start()
    assert held.reached.wait(30)
    assert not target.seen
    held.release()
    thread.join(30)
    assert len(target.seen) == 1


def test_reset_removes_faults(http: httpx.Client, proxy: Proxy) -> None:
    proxy.fail(503)
    proxy.reset()
    assert http.get("/").status_code == 200


def test_requests_are_counted(http: httpx.Client, proxy: Proxy) -> None:
    proxy.fail(503, matches("POST"))
    http.get("/v1")
    http.post("/v1")
    assert proxy.count() == 2
    assert proxy.count(matches("POST", "^/v1$")) == 1
    assert [request.path for request in proxy.requests] == ["/v1", "/v1"]


def test_unreachable_service_ends_the_connection(target: Target, http: httpx.Client) -> None:
    target.shutdown()
    target.server_close()
    with pytest.raises(httpx.TransportError):
        http.get("/")


def test_stopped_proxy_is_not_reachable(target: Target) -> None:
    proxy = Proxy(f"http://127.0.0.1:{target.server_port}")
    proxy.start()
    proxy.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(proxy.url, trust_env=False)
