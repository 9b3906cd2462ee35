"""Raw bytes over a socket to a cloud process: invalid requests are refused in the API's error format, and the process
continues."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.raw import RawConnection, Reply, assert_fault, chunked, request
from tests.fuzz.support import EXAMPLES_FACTOR, SEED, fuzzed_cloud
from tests.support.cloud_process import Client, CloudProcess

# Routes that create a resource from JSON.
CREATES = ("/compute/v2.1/servers", "/identity/v3/projects", "/image/v2/images", "/network/v2.0/networks")
LISTS = (*CREATES, "/compute/v2.1/flavors/detail", "/compute/v2.1/os-keypairs")
LIMITS = {"compute": 114688, "identity": 114688, "image": 2**20, "network": 2**20}
HOST = b"Host: localhost\r\n"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with fuzzed_cloud(tmp_path_factory.mktemp("raw") / "data", hosts=2) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def client(cloud: CloudProcess) -> Client:
    return cloud.client("kilonova")


def exchange(cloud: CloudProcess, data: bytes, method: str = "GET") -> Reply:
    with RawConnection(cloud) as connection:
        connection.send(data)
        reply = connection.reply(method)
    assert reply is not None, data[:200]
    return reply


def post(cloud: CloudProcess, client: Client, path: str, body: bytes, *headers: str) -> Reply:
    kind = (
        ()
        if any(header.lower().startswith("content-type") for header in headers)
        else ("Content-Type: application/json",)
    )
    return exchange(cloud, request("POST", path, f"X-Auth-Token: {client.token}", *kind, *headers, body=body))


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"BREW /compute/ HTTP/1.1\r\n" + HOST + b"\r\n",
        b"get /compute/ HTTP/1.1\r\n" + HOST + b"\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET  HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /compute/v2.1/a b HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /compute/v2.1/\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /compute/v2.1/servers?name=\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /compute/ HTTP/9.9\r\n" + HOST + b"\r\n",
        b"GET /compute/ HTTP/1.1\r\n" + HOST + b"X-Name: a\x00b\r\n\r\n",
        b"GET /compute/ HTTP/1.1\r\n" + HOST + b"X-Name: a\r\n folded\r\n\r\n",
        b"GET /compute/ HTTP/1.1\r\n" + HOST + b"X Name: a\r\n\r\n",
        b"GET /compute/ HTTP/1.1\r\n" + HOST + b": a\r\n\r\n",
        b"POST /compute/ HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /compute/ HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /compute/ HTTP/1.1\r\n" + HOST + b"Content-Length: -2\r\n\r\n{}",
        b"POST /compute/ HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        b"POST /compute/ HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\nx",
        b"POST /identity/v3/auth/tokens HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    ],
)
def test_invalid_http_is_refused_and_closed(cloud: CloudProcess, data: bytes) -> None:
    with RawConnection(cloud) as connection:
        connection.send(data)
        reply = connection.reply()
        assert reply is not None
        assert reply.status == 400
        assert reply.headers["connection"] == "close"
        assert_fault("/", reply)
        assert connection.is_closed()


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "tail", ["/%ff", "/%00", "/%ed%a0%80", "/a%0d%0aX-Evil:%20b", "/%", "/%zz", "/" + "a" * 60000, "/%f0%9f%98%80"]
)
def test_odd_paths_are_404(cloud: CloudProcess, client: Client, path: str, tail: str) -> None:
    reply = exchange(cloud, request("GET", path + tail, f"X-Auth-Token: {client.token}"))
    assert reply.status in (400, 404), reply
    assert_fault(path, reply)
    assert "x-evil" not in reply.headers


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "query",
    [
        "name=%ff",
        "name=%00",
        "name=%ed%a0%80",
        "%00=1",
        "limit=" + "9" * 5000,
        "limit=-1",
        "limit=%ef%bb%bf1",
        "limit=%d9%a3",
        "limit=1e3",
        "limit=nan",
        "marker=%00",
        "sort_key=%00",
        "a=1&" * 1001,
        "name=" + "%00" * 5000,
    ],
)
def test_odd_queries_are_refused_or_ignored(cloud: CloudProcess, client: Client, path: str, query: str) -> None:
    reply = exchange(cloud, request("GET", f"{path}?{query}", f"X-Auth-Token: {client.token}"))
    if reply.status != 200:
        assert reply.status == 400, reply
        assert_fault(path, reply)


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.parametrize(
    "header",
    [
        "X-Auth-Token: \xff\xfe",
        "X-Auth-Token: " + "a" * 50000,
        "X-Auth-Token: gAAAAA\x7f\x80",
        "X-Auth-Token: ",
        "X-Subject-Token: \xff",
    ],
)
def test_odd_tokens_are_401(cloud: CloudProcess, path: str, header: str) -> None:
    reply = exchange(cloud, request("GET", path, header))
    assert reply.status in ((400, 401) if "\x7f" in header else (401,)), reply


@pytest.mark.parametrize(
    "version, status",
    [
        ("compute 2." + "9" * 5000, 406),
        ("compute " + "9" * 5000 + ".1", 406),
        ("compute 2.\xb2", 400),
        ("compute -2.1", 400),
        ("compute", 400),
        ("compute 2.1, compute 2.2", 200),
        (",,,", 200),
        ("\xff", 200),
        ("compute latest", 200),
    ],
)
def test_odd_version_headers(cloud: CloudProcess, client: Client, version: str, status: int) -> None:
    headers = (f"X-Auth-Token: {client.token}", f"OpenStack-API-Version: {version}")
    reply = exchange(cloud, request("GET", "/compute/v2.1/servers", *headers))
    assert reply.status == status, reply


DEEP = 100_000
BODIES = {
    "empty": b"",
    "no JSON": b"{",
    "half": b'{"server": {"name": "x"',
    "after the end": b"{} {}",
    "single quotes": b"{'a': 1}",
    "bad UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "BOM": b"\xef\xbb\xbf{}",
    "a key twice": b'{"server": {}, "server": {}}',
    "a key twice inside": b'{"server": {"name": "a", "name": "b"}}',
    "nested lists": b"[" * 50_000 + b"]" * 50_000,
    "nested objects": b'{"a":' * 16_000 + b"1" + b"}" * 16_000,
    "nested and open": b"[" * DEEP,
    "huge integer": b'{"a": ' + b"9" * 20_000 + b"}",
    "huge exponent": b'{"a": 1e400}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "NUL": b'{"a": "\\u0000"}',
    "raw NUL": b'{"a": "\x00"}',
    "lone surrogate": b'{"a": "\\ud800"}',
    "lone surrogate as key": b'{"\\udfff": 1}',
    "null": b"null",
    "list": b"[]",
    "string": b'"x"',
    "number": b"7",
    "true": b"true",
    "many keys": b"{" + b",".join(b'"k%d": 1' % number for number in range(5000)) + b"}",
    "many items": b'{"networks": [' + b"1," * 40_000 + b"1]}",
    "spaces": b" " * 100_000,
}


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.parametrize("name", BODIES)
def test_invalid_bodies_are_refused(cloud: CloudProcess, client: Client, path: str, name: str) -> None:
    reply = post(cloud, client, path, BODIES[name])
    if path.startswith("/image") and name in ("many keys",):
        assert reply.status in (400, 413), reply
    else:
        assert reply.status == 400, (name, reply)
    assert_fault(path, reply)


@pytest.mark.parametrize("path", CREATES)
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/xml", "", ";;;", "\xff\xff", "application/json\t", "a" * 9000]
)
def test_other_content_types_are_refused(cloud: CloudProcess, client: Client, path: str, kind: str) -> None:
    reply = post(cloud, client, path, b'{"nonsense": []}', f"Content-Type: {kind}")
    # Compute reads plain text as JSON.
    is_read = kind.strip() == "application/json" or (kind == "text/plain" and path.startswith("/compute"))
    assert reply.status == (400 if is_read else 415), reply
    assert_fault(path, reply)


@pytest.mark.parametrize("path", CREATES)
def test_large_bodies_are_413(cloud: CloudProcess, client: Client, path: str) -> None:
    limit = LIMITS[path.split("/")[1]]
    kinds = (f"X-Auth-Token: {client.token}", "Content-Type: application/json")
    with RawConnection(cloud) as connection:  # announced: refused before it is sent
        connection.send(request("POST", path, *kinds, f"Content-Length: {limit + 1}"))
        reply = connection.reply()
        assert reply is not None
        assert reply.status == 413
        assert_fault(path, reply)
    with RawConnection(cloud) as connection:  # not announced: refused when the limit is exceeded
        connection.send(request("POST", path, *kinds, "Transfer-Encoding: chunked"))
        connection.send(*(chunked([b" " * 65536]) for _ in range(limit // 65536 + 1)))
        reply = connection.reply()
        assert reply is not None
        assert reply.status == 413
        assert_fault(path, reply)
        connection.send(b"0\r\n\r\n")  # the rest is skipped, and the connection stays open
        connection.send(request("GET", "/healthz"))
        after = connection.reply()
        assert after is not None
        assert after.body == b"ok\n"
    assert post(cloud, client, path, b" " * (limit - 2) + b"{}").status == 400 or path.startswith("/image")


def test_incomplete_bodies(cloud: CloudProcess, client: Client) -> None:
    """The client disconnects in the middle of a request; the process continues."""
    kinds = (f"X-Auth-Token: {client.token}", "Content-Type: application/json")
    for path in CREATES:
        for data in (
            request("POST", path, *kinds, "Content-Length: 1000") + b'{"server"',
            request("POST", path, *kinds, "Transfer-Encoding: chunked") + b'5\r\n{"a"',
            request("POST", path, *kinds, "Transfer-Encoding: chunked") + chunked([b'{"a"']),
            request("POST", path, *kinds),
            request("POST", path, *kinds)[:-7],
        ):
            with RawConnection(cloud) as connection:
                connection.send(data)
            with RawConnection(cloud) as connection:
                connection.send(data)
                connection.end()
                reply = connection.reply()
                assert reply is None or 400 <= reply.status < 500, reply
    assert exchange(cloud, request("GET", "/healthz")).status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /?" + b"a" * 5_000_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X-Name: " + b"a" * 70000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X-Name: " + b"a" * 5_000_000,
        b"GET / HTTP/1.1\r\n" + HOST + b"X-Name: a\r\n" * 10000 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X-" + b"a" * 5_000_000,
    ],
)
def test_large_heads_are_431(cloud: CloudProcess, head: bytes) -> None:
    with RawConnection(cloud) as connection:
        connection.send(head)
        reply = connection.reply()
        if reply is not None:  # the connection may be closed before the client can read it
            assert reply.status == 431
            assert_fault("/", reply)
            assert connection.is_closed()


def test_long_head_within_the_limit(cloud: CloudProcess) -> None:
    assert exchange(cloud, request("GET", "/healthz?" + "a" * 60000)).status == 200
    assert exchange(cloud, request("GET", "/healthz", *["X-Name: " + "a" * 100] * 500)).status == 200


def test_slow_clients_do_not_block_others(cloud: CloudProcess, client: Client) -> None:
    connections = [RawConnection(cloud) for _ in range(100)]
    for number, connection in enumerate(connections):
        connection.send(request("POST", "/identity/v3/auth/tokens", "Content-Length: 1000")[: number * 2])
    began = time.monotonic()
    for byte in request("GET", "/compute/v2.1/servers", f"X-Auth-Token: {client.token}")[:-4]:
        connections[0].send(bytes([byte]))
    assert exchange(cloud, request("GET", "/healthz")).status == 200
    connections[0].send(b"\r\n\r\n")
    reply = connections[0].reply()
    assert reply is not None
    assert reply.status == 200
    assert time.monotonic() - began < 25, "before the server times out"
    for connection in connections:
        connection.__exit__()


def test_pipelined_requests(cloud: CloudProcess, client: Client) -> None:
    """Pipelined requests are answered in order, and garbage after them is refused last."""
    token = f"X-Auth-Token: {client.token}"
    requests = [
        ("GET", request("GET", "/compute/v2.1/servers/detail", token), 200),
        ("HEAD", request("HEAD", "/compute/v2.1/servers", token), 405),
        ("POST", request("POST", "/identity/v3/auth/tokens", "Content-Type: application/json", body=b"{}"), 400),
        ("GET", request("GET", "/healthz", body=b"a body that nobody reads"), 200),
        ("PUT", request("PUT", "/compute/v2.1/servers", token, "Content-Type: x/y", body=b"x" * 5000), 405),
        ("DELETE", request("DELETE", "/compute/v2.1/servers/none", token), 404),
        ("POST", request("POST", "/nowhere", "Transfer-Encoding: chunked") + chunked([b"x", b"y"]) + b"0\r\n\r\n", 404),
    ] * 5
    with RawConnection(cloud) as connection:
        connection.send(b"".join(data for _, data, _ in requests) + b"NONSENSE\r\n\r\n")
        for method, data, status in requests:
            reply = connection.reply(method)
            assert reply is not None
            assert reply.status == status, data
        last = connection.reply()
        assert last is None or last.status == 400
        assert last is None or connection.is_closed()


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.0"])
def test_upgrade_headers_are_ignored(cloud: CloudProcess, protocol: str) -> None:
    headers = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAMAAABk")
    body = b'{"auth": {"identity": {"methods": ["none"]}}}'
    with RawConnection(cloud) as connection:
        for _ in range(2):
            connection.send(
                request("POST", "/identity/v3/auth/tokens", "Content-Type: application/json", *headers, body=body)
            )
            reply = connection.reply()
            assert reply is not None
            assert (reply.status, "unsupported method" in reply.json()["error"]["message"]) == (401, True)
            connection.send(request("GET", "/healthz", *headers) * 3)
            for _ in range(3):
                reply = connection.reply()
                assert reply is not None
                assert reply.body == b"ok\n"


def test_expect_100_continue(cloud: CloudProcess) -> None:
    expect_headers = ("Content-Type: application/json", "Expect: 100-continue")
    with RawConnection(cloud) as connection:
        connection.send(request("POST", "/identity/v3/auth/tokens", *expect_headers, "Content-Length: 2"))
        assert connection.file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert connection.file.readline() == b"\r\n"
        connection.send(b"{}")
        reply = connection.reply()
        assert reply is not None
        assert reply.status == 400
    # Refused without reading the body, so the connection must be closed.
    with RawConnection(cloud) as connection:
        connection.send(request("POST", "/compute/v2.1/servers", *expect_headers, "Content-Length: 2"))
        reply = connection.reply()
        assert reply is not None
        assert (reply.status, reply.headers["connection"]) == (401, "close")
        assert connection.is_closed()


def test_forwarded_headers_of_clients_are_ignored(cloud: CloudProcess, client: Client) -> None:
    body = b'{"name": "x"}'
    headers = (f"X-Auth-Token: {client.token}", "Content-Type: application/json", "X-Forwarded-Proto: https")
    for host in ("evil.example", "\xff\xfe", "a b", '"><script>', "x" * 3000):
        reply = exchange(cloud, request("POST", "/image/v2/images", *headers, f"X-Forwarded-Host: {host}", body=body))
        assert reply.status == 201
        assert reply.headers["location"].startswith("http://localhost/image/v2/images/")


@seed(SEED)
@settings(max_examples=150 * EXAMPLES_FACTOR, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from(
                [
                    b"GET /compute/v2.1/servers HTTP/1.1\r\n",
                    b"POST /identity/v3/auth/tokens HTTP/1.1\r\n",
                    b"Content-Length: 5\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"Host: x\r\n",
                    b"Connection: close\r\n",
                    b"Upgrade: h2c\r\nConnection: upgrade\r\n",
                    b"\r\n",
                    b"\r\n\r\n",
                    b"5\r\nhello\r\n",
                    b"0\r\n\r\n",
                    b"{}",
                ]
            ),
        ),
        max_size=12,
    )
)
def test_random_bytes_cause_no_server_error(cloud: CloudProcess, parts: list[bytes]) -> None:
    with RawConnection(cloud) as connection:
        connection.send(b"".join(parts))
        connection.end()
        for _ in itertools.count():
            reply = connection.reply()
            if reply is None:
                break
            assert reply.status < 500, reply
    assert exchange(cloud, request("GET", "/healthz")).status == 200
