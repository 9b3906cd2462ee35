"""Requests that try to keep a cloud process busy. The event loop never works long for one of them.

The first test counts the CPU time that the thread of the event loop spends on each request: other requests wait for as
long. The load of the machine does not change it, unlike response times. The second test sends all requests at once, and
`/healthz` again and again meanwhile.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.hostile_requests import Attack, attacks
from tests.fuzz.raw import RawConnection, Reply, request
from tests.fuzz.support import fuzzed_cloud
from tests.support.cloud_process import CloudProcess

# How long `/healthz` may wait. The most expensive request takes a third of it.
MAX_CPU_SECONDS = 0.1
SERVERS = 3


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
