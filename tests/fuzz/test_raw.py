"""Bytes that no client library would send, over a socket to a real process: refused in the API's own error format, or
hung up on where they are not HTTP, and the process goes on."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.raw import Raw, Reply, assert_fault, chunked, request
from tests.fuzz.support import MORE, SEED, victim
from tests.support.process import Client, Cloud

# Where each API makes something from JSON.
CREATES = ("/compute/v2.1/servers", "/identity/v3/projects", "/image/v2/images", "/network/v2.0/networks")
LISTS = (*CREATES, "/compute/v2.1/flavors/detail", "/compute/v2.1/os-keypairs")
LIMITS = {"compute": 114688, "identity": 114688, "image": 2**20, "network": 4 * 2**20}
HOST = b"Host: localhost\r\n"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with victim(tmp_path_factory.mktemp("raw") / "data", hosts=2) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def client(cloud: Cloud) -> Client:
    return cloud.client("kilonova")


def ask(cloud: Cloud, data: bytes, method: str = "GET") -> Reply:
    with Raw(cloud) as wire:
        wire.send(data)
        reply = wire.reply(method)
    assert reply is not None, data[:200]
    return reply


def post(cloud: Cloud, client: Client, path: str, body: bytes, *headers: str) -> Reply:
    kind = (
        ()
        if any(header.lower().startswith("content-type") for header in headers)
        else ("Content-Type: application/json",)
    )
    return ask(cloud, request("POST", path, f"X-Auth-Token: {client.token}", *kind, *headers, body=body))


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
def test_what_is_not_http_is_refused_and_hung_up_on(cloud: Cloud, data: bytes) -> None:
    with Raw(cloud) as wire:
        wire.send(data)
        reply = wire.reply()
        assert reply is not None
        assert reply.status == 400
        assert reply.headers["connection"] == "close"
        assert_fault("/", reply)
        assert wire.is_closed()


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "tail", ["/%ff", "/%00", "/%ed%a0%80", "/a%0d%0aX-Evil:%20b", "/%", "/%zz", "/" + "a" * 60000, "/%f0%9f%98%80"]
)
def test_odd_paths_are_404(cloud: Cloud, client: Client, path: str, tail: str) -> None:
    reply = ask(cloud, request("GET", path + tail, f"X-Auth-Token: {client.token}"))
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
def test_odd_queries_are_refused_or_ignored(cloud: Cloud, client: Client, path: str, query: str) -> None:
    reply = ask(cloud, request("GET", f"{path}?{query}", f"X-Auth-Token: {client.token}"))
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
def test_odd_tokens_are_401(cloud: Cloud, path: str, header: str) -> None:
    reply = ask(cloud, request("GET", path, header))
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
def test_odd_versions(cloud: Cloud, client: Client, version: str, status: int) -> None:
    headers = (f"X-Auth-Token: {client.token}", f"OpenStack-API-Version: {version}")
    reply = ask(cloud, request("GET", "/compute/v2.1/servers", *headers))
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
def test_bodies_that_are_no_good(cloud: Cloud, client: Client, path: str, name: str) -> None:
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
def test_content_types(cloud: Cloud, client: Client, path: str, kind: str) -> None:
    reply = post(cloud, client, path, b'{"nonsense": []}', f"Content-Type: {kind}")
    assert reply.status == (400 if kind.strip() == "application/json" else 415), reply
    assert_fault(path, reply)


@pytest.mark.parametrize("path", CREATES)
def test_bodies_above_the_limit(cloud: Cloud, client: Client, path: str) -> None:
    limit = LIMITS[path.split("/")[1]]
    kinds = (f"X-Auth-Token: {client.token}", "Content-Type: application/json")
    with Raw(cloud) as wire:  # announced: refused before any of it comes
        wire.send(request("POST", path, *kinds, f"Content-Length: {limit + 1}"))
        reply = wire.reply()
        assert reply is not None
        assert reply.status == 413
        assert_fault(path, reply)
    with Raw(cloud) as wire:  # not announced: refused when it has come
        wire.send(request("POST", path, *kinds, "Transfer-Encoding: chunked"))
        wire.send(*(chunked([b" " * 65536]) for _ in range(limit // 65536 + 1)))
        reply = wire.reply()
        assert reply is not None
        assert reply.status == 413
        assert_fault(path, reply)
        wire.send(b"0\r\n\r\n")  # the rest is read over, and the connection goes on
        wire.send(request("GET", "/healthz"))
        after = wire.reply()
        assert after is not None
        assert after.body == b"ok\n"
    assert post(cloud, client, path, b" " * (limit - 2) + b"{}").status == 400 or path.startswith("/image")


def test_bodies_that_break_off(cloud: Cloud, client: Client) -> None:
    """The client goes away in the middle: nobody is answered, and nothing is left waiting."""
    kinds = (f"X-Auth-Token: {client.token}", "Content-Type: application/json")
    for path in CREATES:
        for data in (
            request("POST", path, *kinds, "Content-Length: 1000") + b'{"server"',
            request("POST", path, *kinds, "Transfer-Encoding: chunked") + b'5\r\n{"a"',
            request("POST", path, *kinds, "Transfer-Encoding: chunked") + chunked([b'{"a"']),
            request("POST", path, *kinds),
            request("POST", path, *kinds)[:-7],
        ):
            with Raw(cloud) as wire:
                wire.send(data)
            with Raw(cloud) as wire:
                wire.send(data)
                wire.end()
                reply = wire.reply()
                assert reply is None or 400 <= reply.status < 500, reply
    assert ask(cloud, request("GET", "/healthz")).status == 200


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
def test_heads_above_the_limit(cloud: Cloud, head: bytes) -> None:
    with Raw(cloud) as wire:
        wire.send(head)
        reply = wire.reply()
        if reply is not None:  # hung up on in the middle of sending, a client may not get to read it
            assert reply.status == 431
            assert_fault("/", reply)
            assert wire.is_closed()


def test_a_long_head_within_the_limit(cloud: Cloud) -> None:
    assert ask(cloud, request("GET", "/healthz?" + "a" * 60000)).status == 200
    assert ask(cloud, request("GET", "/healthz", *["X-Name: " + "a" * 100] * 500)).status == 200


def test_slow_and_silent_clients_hold_nobody_up(cloud: Cloud, client: Client) -> None:
    waiting = [Raw(cloud) for _ in range(100)]
    for number, wire in enumerate(waiting):
        wire.send(request("POST", "/identity/v3/auth/tokens", "Content-Length: 1000")[: number * 2])
    began = time.monotonic()
    for byte in request("GET", "/compute/v2.1/servers", f"X-Auth-Token: {client.token}")[:-4]:
        waiting[0].send(bytes([byte]))
    assert ask(cloud, request("GET", "/healthz")).status == 200
    waiting[0].send(b"\r\n\r\n")
    reply = waiting[0].reply()
    assert reply is not None
    assert reply.status == 200
    assert time.monotonic() - began < 25, "before the server has enough of them"
    for wire in waiting:
        wire.__exit__()


def test_requests_one_behind_the_other(cloud: Cloud, client: Client) -> None:
    """Answered in their order, and what is not HTTP behind them only after them."""
    token = f"X-Auth-Token: {client.token}"
    asked = [
        ("GET", request("GET", "/compute/v2.1/servers/detail", token), 200),
        ("HEAD", request("HEAD", "/compute/v2.1/servers", token), 405),
        ("POST", request("POST", "/identity/v3/auth/tokens", "Content-Type: application/json", body=b"{}"), 400),
        ("GET", request("GET", "/healthz", body=b"a body that nobody reads"), 200),
        ("PUT", request("PUT", "/compute/v2.1/servers", token, "Content-Type: x/y", body=b"x" * 5000), 405),
        ("DELETE", request("DELETE", "/compute/v2.1/servers/none", token), 404),
        ("POST", request("POST", "/nowhere", "Transfer-Encoding: chunked") + chunked([b"x", b"y"]) + b"0\r\n\r\n", 404),
    ] * 5
    with Raw(cloud) as wire:
        wire.send(b"".join(data for _, data, _ in asked) + b"NONSENSE\r\n\r\n")
        for method, data, status in asked:
            reply = wire.reply(method)
            assert reply is not None
            assert reply.status == status, data
        last = wire.reply()
        assert last is None or last.status == 400
        assert last is None or wire.is_closed()


@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.0"])
def test_offers_of_other_protocols_are_not_taken_up(cloud: Cloud, offer: str) -> None:
    headers = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {offer}", "HTTP2-Settings: AAMAAABk")
    body = b'{"auth": {"identity": {"methods": ["none"]}}}'
    with Raw(cloud) as wire:
        for _ in range(2):
            wire.send(
                request("POST", "/identity/v3/auth/tokens", "Content-Type: application/json", *headers, body=body)
            )
            reply = wire.reply()
            assert reply is not None
            assert (reply.status, "unsupported method" in reply.json()["error"]["message"]) == (401, True)
            wire.send(request("GET", "/healthz", *headers) * 3)
            for _ in range(3):
                reply = wire.reply()
                assert reply is not None
                assert reply.body == b"ok\n"


def test_clients_that_ask_before_they_send(cloud: Cloud) -> None:
    ask_first = ("Content-Type: application/json", "Expect: 100-continue")
    with Raw(cloud) as wire:
        wire.send(request("POST", "/identity/v3/auth/tokens", *ask_first, "Content-Length: 2"))
        assert wire.file.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert wire.file.readline() == b"\r\n"
        wire.send(b"{}")
        reply = wire.reply()
        assert reply is not None
        assert reply.status == 400
    with Raw(cloud) as wire:  # refused without waiting, so nobody can know whether the body will come
        wire.send(request("POST", "/compute/v2.1/servers", *ask_first, "Content-Length: 2"))
        reply = wire.reply()
        assert reply is not None
        assert (reply.status, reply.headers["connection"]) == (401, "close")
        assert wire.is_closed()


def test_a_host_in_links_breaks_no_header(cloud: Cloud, client: Client) -> None:
    body = b'{"name": "x"}'
    headers = (f"X-Auth-Token: {client.token}", "Content-Type: application/json")
    for host in ("\xff\xfe", "a b", '"><script>', "x" * 3000):
        reply = ask(cloud, request("POST", "/image/v2/images", *headers, f"X-Forwarded-Host: {host}", body=body))
        assert reply.status == 201
        assert reply.headers["location"].startswith(f"http://{host}/image/v2/images/")


@seed(SEED)
@settings(max_examples=150 * MORE, deadline=None, database=None, suppress_health_check=list(HealthCheck))
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
def test_anything(cloud: Cloud, parts: list[bytes]) -> None:
    with Raw(cloud) as wire:
        wire.send(b"".join(parts))
        wire.end()
        for _ in itertools.count():
            reply = wire.reply()
            if reply is None:
                break
            assert reply.status < 500, reply
    assert ask(cloud, request("GET", "/healthz")).status == 200
