"""Power state changes that the cloud did not request, also while an agent is stopped."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cloud_process import kilonova
from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import wait_until
from tests.virt.clouds import delete_servers

HOST = "one"


@pytest.fixture(scope="module")
def cloud(short_timeouts: RealCloud) -> RealCloud:
    return short_timeouts


@pytest.fixture(scope="module")
def server(cloud: RealCloud) -> Iterator[str]:
    made = cloud.boot("web", cloud.micro_image(), host=HOST)
    wait_until(lambda: last_tick(cloud, made), "the guest counts")
    yield made
    delete_servers(cloud, made)


def last_tick(cloud: RealCloud, server: str) -> int:
    """The guest's last count in its console log."""
    written = (cloud.instances_path(HOST) / server / "console.log").read_bytes()
    return max(map(int, re.findall(rb"TICK (\d{5})", written)), default=0)


def virsh(cloud: RealCloud, *command: str) -> str:
    host = cloud.hosts[HOST]
    return host.execute("virsh", "-c", host.uri, *command)


def test_server_status_follows_the_guest(cloud: RealCloud, server: str) -> None:
    virsh(cloud, "suspend", server)
    assert cloud.wait(server, "PAUSED")["OS-EXT-STS:power_state"] == 3
    virsh(cloud, "resume", server)
    assert cloud.wait(server, "ACTIVE")["OS-EXT-STS:power_state"] == 1
    virsh(cloud, "destroy", server)
    assert cloud.wait(server, "SHUTOFF")["OS-EXT-STS:power_state"] == 4
    cloud.server_action(server, "os-start")
    cloud.wait(server, "ACTIVE")
    assert len(cloud.hosts_running(server)) == 1


def test_server_whose_qemu_dies_is_shut_off_and_can_be_started(cloud: RealCloud, server: str) -> None:
    os.kill(_qemu_pid(server), signal.SIGKILL)
    cloud.wait(server, "SHUTOFF")
    actions = cloud.client().get("compute", f"/servers/{server}/os-instance-actions").json()["instanceActions"]
    assert actions[0]["action"] == "stop"
    cloud.server_action(server, "os-start")
    cloud.wait(server, "ACTIVE")


def test_changes_without_agent_are_seen_at_its_return(cloud: RealCloud, server: str) -> None:
    cloud.kill_agent(HOST)
    virsh(cloud, "destroy", server)
    cloud.wait_until_down(HOST)
    assert cloud.show(server)["status"] == "ACTIVE", "the change is not known yet"
    cloud.start_agent(HOST)
    cloud.wait(server, "SHUTOFF")
    cloud.wait_for_host(HOST, "up")
    cloud.server_action(server, "os-start")
    cloud.wait(server, "ACTIVE")


def test_stopped_agent_leaves_guests_running(cloud: RealCloud, server: str) -> None:
    seen = last_tick(cloud, server)
    qemu = _qemu_pid(server)
    assert cloud.agents.pop(HOST).stop() == 0
    cloud.start_agent(HOST)
    wait_until(lambda: last_tick(cloud, server) > seen, "the guest counts on")
    assert _qemu_pid(server) == qemu


def test_doctor_finds_no_differences(cloud: RealCloud, server: str) -> None:
    cloud.console_output(server)  # waits until the host responds again
    file = cloud.site.directory / "control.toml"
    found = kilonova("doctor", "--config", str(file), "--data", str(cloud.data))
    assert (found.returncode, found.stdout) == (0, "Everything agrees.\n"), found.stdout + found.stderr


def _qemu_pid(server: str) -> int:
    """The process id of the server's QEMU."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                line = (directory / "cmdline").read_bytes()
            except OSError:
                continue
            if re.search(rb"qemu-system", line) and server.encode() in line:
                return int(directory.name)
    raise AssertionError(f"no QEMU runs for {server}")
