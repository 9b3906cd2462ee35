"""Guests that change behind the cloud's back on real hosts, and agents that are away meanwhile."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import kilonova
from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import until
from tests.virt.clouds import delete

HOST = "one"


@pytest.fixture(scope="module")
def cloud(short_timeouts: RealCloud) -> RealCloud:
    return short_timeouts


@pytest.fixture(scope="module")
def server(cloud: RealCloud) -> Iterator[str]:
    made = cloud.boot("web", cloud.micro(), host=HOST)
    until(lambda: ticks(cloud, made), "the guest counts")
    yield made
    delete(cloud, made)


def ticks(cloud: RealCloud, server: str) -> int:
    """How far the guest has counted, as its host has written it down."""
    written = (cloud.instances(HOST) / server / "console.log").read_bytes()
    return max(map(int, re.findall(rb"TICK (\d{5})", written)), default=0)


def virsh(cloud: RealCloud, *command: str) -> str:
    host = cloud.hosts[HOST]
    return host.do("virsh", "-c", host.uri, *command)


def test_a_guest_is_shown_as_it_is(cloud: RealCloud, server: str) -> None:
    virsh(cloud, "suspend", server)
    assert cloud.wait(server, "PAUSED")["OS-EXT-STS:power_state"] == 3
    virsh(cloud, "resume", server)
    assert cloud.wait(server, "ACTIVE")["OS-EXT-STS:power_state"] == 1
    virsh(cloud, "destroy", server)
    assert cloud.wait(server, "SHUTOFF")["OS-EXT-STS:power_state"] == 4
    cloud.act(server, "os-start")
    cloud.wait(server, "ACTIVE")
    assert len(cloud.runs(server)) == 1


def test_a_guest_whose_qemu_dies_is_shut_off_and_can_be_started(cloud: RealCloud, server: str) -> None:
    os.kill(_qemu(server), signal.SIGKILL)
    cloud.wait(server, "SHUTOFF")
    actions = cloud.client().get("compute", f"/servers/{server}/os-instance-actions").json()["instanceActions"]
    assert actions[0]["action"] == "stop"
    cloud.act(server, "os-start")
    cloud.wait(server, "ACTIVE")


def test_what_changed_while_the_agent_was_away_is_seen_at_its_return(cloud: RealCloud, server: str) -> None:
    cloud.kill_agent(HOST)
    virsh(cloud, "destroy", server)
    cloud.wait_down(HOST)
    assert cloud.show(server)["status"] == "ACTIVE", "nobody knows"
    cloud.start_agent(HOST)
    cloud.wait(server, "SHUTOFF")
    cloud.wait_host(HOST, "up")
    cloud.act(server, "os-start")
    cloud.wait(server, "ACTIVE")


def test_an_agent_that_is_stopped_leaves_guests_alone(cloud: RealCloud, server: str) -> None:
    seen = ticks(cloud, server)
    qemu = _qemu(server)
    assert cloud.agents.pop(HOST).stop() == 0
    cloud.start_agent(HOST)
    until(lambda: ticks(cloud, server) > seen, "the counter goes on")
    assert _qemu(server) == qemu


def test_the_doctor_finds_that_all_agrees(cloud: RealCloud, server: str) -> None:
    cloud.said(server)  # by its host, which answers again
    file = cloud.site.directory / "control.toml"
    found = kilonova("doctor", "--config", str(file), "--data", str(cloud.data))
    assert (found.returncode, found.stdout) == (0, "Everything agrees.\n"), found.stdout + found.stderr


def _qemu(server: str) -> int:
    """The process as this machine numbers it."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                line = (directory / "cmdline").read_bytes()
            except OSError:
                continue
            if re.search(rb"qemu-system", line) and server.encode() in line:
                return int(directory.name)
    raise AssertionError(f"no QEMU runs for {server}")
