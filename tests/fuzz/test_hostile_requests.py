"""Requests that try to keep a cloud process busy. The event loop never works long for one of them.

The first test counts the CPU time that the thread of the event loop spends on each request: other requests wait for as
long. The load of the machine does not change it, unlike response times. The second test sends all requests at once, and
`/healthz` again and again meanwhile.
"""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from tests.fuzz.raw import RawConnection, Reply, chunked, request
from tests.fuzz.support import fuzzed_cloud
from tests.support.cloud_process import CloudProcess

# How long `/healthz` may wait. The most expensive request takes a third of it.
MAX_CPU_SECONDS = 0.1
SERVERS = 3
KIB = 1024
LISTS = (
    *("/compute/v2.1/servers/detail", "/compute/v2.1/flavors/detail", "/compute/v2.1/os-keypairs"),
    *("/volume/v3/volumes/detail", "/volume/v3/snapshots", "/volume/v3/types", "/image/v2/images"),
    *("/network/v2.0/networks", "/network/v2.0/ports", "/network/v2.0/security-groups", "/identity/v3/auth/projects"),
)
CREATES = {
    "/compute/v2.1/servers": 112 * KIB,
    "/compute/v2.1/os-keypairs": 112 * KIB,
    "/identity/v3/auth/tokens": 112 * KIB,
    "/image/v2/images": KIB * KIB,
    "/network/v2.0/networks": KIB * KIB,
    "/network/v2.0/ports": KIB * KIB,
    "/volume/v3/volumes": 112 * KIB,
}
PATTERNS = (
    "(.?){2000}x",
    "(.?){30}x",
    "((((a*)*)*)*)*b",
    "(a|aa)+$" * 20,
    "(" * 255,
    "[" * 255,
    "^(.*)*$|" * 30,
    "x" * 60000,
)
PATTERN_FILTERS = ("name", "ip")


class Attack(NamedTuple):
    name: str
    data: bytes


def queries() -> Iterator[tuple[str, str]]:
    for key in PATTERN_FILTERS:
        for pattern in PATTERNS:
            yield f"{key}={pattern[:20]}", f"/compute/v2.1/servers?{key}={quote(pattern)}"
    long = ",".join(["a"] * 15000)
    for path in LISTS:
        for key in (
            "tags",
            "not-tags-any",
            "name",
            "id",
            "status",
            "created_at",
            "sort",
            "sort_key",
            "fields",
            "metadata",
        ):
            yield f"{path}?{key}=a,a…", f"{path}?{key}={long}"
            yield f"{path}?{key}=…&{key}=…", f"{path}?" + "&".join([f"{key}=name"] * 999)
        yield f"{path}?limit", f"{path}?limit={'9' * 60000}"
        yield f"{path}?many", f"{path}?" + "&".join(f"key{number}=x" for number in range(999))
        yield f"{path}?percent", f"{path}?name={'%C3%A9' * 10000}"
        yield f"{path}?invalid", f"{path}?name={'%ED%A0%80' * 6000}"
        yield f"{path}/…", f"{path}/" + "%2F" * 20000
        yield f"{path}/a/a", f"{path}" + "/a" * 30000
    for text in ("{" + "'a':" * 15000, "{" + "".join(f"'k{number}':'v'," for number in range(4000)) + "}", "[" * 60000):
        yield "dictionary", f"/volume/v3/volumes?metadata={text}"


def bodies(size: int) -> Iterator[tuple[str, bytes]]:
    half = size // 2 - 100
    yield "deep lists", b"[" * half + b"]" * half
    yield "deep objects", b'{"a":' * (size // 6 - 100) + b"1" + b"}" * (size // 6 - 100)
    yield "numbers", b'{"a": [' + b"1," * half + b"1]}"
    yield "empty objects", b"[" + b"{}," * (size // 3 - 100) + b"{}]"
    yield "keys", b"{" + b",".join(b'"%d":1' % number for number in range(size // 12)) + b"}"
    yield "long number", b'{"a": ' + b"9" * (size - 100) + b"}"
    yield "long string", b'{"a": "' + b"a" * (size - 100) + b'"}'
    yield "escapes", b'{"a": "' + b"\\u0041" * (size // 6 - 100) + b'"}'
    yield "spaces", b" " * (size - 100) + b"{}"
    yield "quotes", b'{"a": "' + b'\\"' * half + b'"}'


def attacks(token: str) -> Iterator[Attack]:
    auth = f"X-Auth-Token: {token}"
    for name, target in queries():
        yield Attack(name, request("GET", target[: 64 * KIB - 500], auth, "OpenStack-API-Version: compute 2.96"))
    kind = "Content-Type: application/json"
    for path, size in CREATES.items():
        for name, body in bodies(size):
            yield Attack(f"{path} {name}", request("POST", path, auth, kind, body=body))
        tiny = chunked([b"{"] * 2000) + b"0\r\n\r\n"
        yield Attack(f"{path} chunks", request("POST", path, auth, kind, "Transfer-Encoding: chunked") + tiny)
    yield Attack("headers", request("GET", "/compute/v2.1/servers", auth, *["X-A: b"] * 4000))
    yield Attack("accept", request("GET", "/placement/resource_providers", auth, "Accept: " + "a/b;q=1," * 7000))
    yield Attack("versions", request("GET", "/compute/v2.1/servers", auth, "OpenStack-API-Version: " + "," * 60000))
    for wrong in ("a" * 60000, "gAAAAA" + "B" * 1000):
        yield Attack("token", request("GET", "/compute/v2.1/servers", f"X-Auth-Token: {wrong}"))
    user = {"name": "x" * 4096, "domain": {"name": "y" * 4096}, "password": "z" * 4096}
    login = {"auth": {"identity": {"methods": ["password"], "password": {"user": user}}}}
    yield Attack("login", request("POST", "/identity/v3/auth/tokens", kind, body=json.dumps(login).encode()))


def reply_to(cloud: CloudProcess, attack: Attack) -> Reply | None:
    with RawConnection(cloud) as connection:
        connection.send(attack.data)
        return connection.reply()


def cpu_seconds(pid: int) -> float:
    """The CPU time of the thread that runs the event loop, which is the first one."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with fuzzed_cloud(tmp_path_factory.mktemp("hostile") / "data", hosts=2) as cloud:
        member = cloud.client("kilonova-demo")
        for server in [member.boot("a" * 200 + str(number)) for number in range(SERVERS)]:
            member.wait(server, status="ACTIVE")
        yield cloud


def test_no_request_keeps_the_event_loop_busy(cloud: CloudProcess) -> None:
    token = cloud.client("kilonova-demo-reader").token
    costs: list[tuple[float, str]] = []
    for attack in attacks(token):
        before = cpu_seconds(cloud.pid)
        reply = reply_to(cloud, attack)
        costs.append((cpu_seconds(cloud.pid) - before, attack.name))
        assert reply is not None, attack.name
        assert reply.status < 500, (attack.name, reply)
    costs.sort(reverse=True)
    print(
        f"{len(costs)} requests; the most expensive:", *(f"{cost:.3f} s {name}" for cost, name in costs[:8]), sep="\n"
    )
    assert costs[0][0] < MAX_CPU_SECONDS, costs[:8]


def test_health_is_answered_during_attacks(cloud: CloudProcess) -> None:
    """Four connections send all attacks. `/healthz` is answered meanwhile, without an error."""
    pending = list(attacks(cloud.client("kilonova-demo-reader").token))
    statuses: list[int | None] = []

    def attack() -> None:
        while pending:
            try:
                attack = pending.pop()
            except IndexError:
                return
            reply = reply_to(cloud, attack)
            statuses.append(reply.status if reply is not None else None)

    total = len(pending)
    threads = [threading.Thread(target=attack) for _ in range(4)]
    for thread in threads:
        thread.start()
    seconds: list[float] = []
    remaining: set[int] = set()
    with RawConnection(cloud) as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while any(thread.is_alive() for thread in threads):
            began = time.monotonic()
            connection.send(request("GET", "/healthz"))
            reply = connection.reply()
            seconds.append(time.monotonic() - began)
            remaining.add(len(statuses))
            assert reply is not None
            assert reply.status == 200
    assert len(statuses) == total
    assert None not in statuses
    print(
        f"{total} attacks, {len(seconds)} times /healthz: median {statistics.median(seconds):.4f} s, "
        f"longest {max(seconds):.3f} s"
    )
    # If an attack stopped the process, the others would wait too, and be answered without `/healthz` in between.
    assert len(remaining) > total / 20
