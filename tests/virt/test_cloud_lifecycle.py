"""Server actions with the stock client, checked on the guest's console."""

from __future__ import annotations

import re
import time

import pytest

from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import wait_until
from tests.virt.clouds import OpenstackClient, delete_servers


@pytest.fixture
def cloud(long_timeouts: RealCloud) -> RealCloud:
    return long_timeouts


def test_server_actions(cloud: RealCloud, openstack: OpenstackClient) -> None:
    red, blue = cloud.micro_image("red"), cloud.micro_image("blue")
    # A small disk, because it is uploaded as a snapshot.
    small, large = cloud.flavor("small", disk=0), cloud.flavor("larger", ram=96, disk=1)

    openstack(f"server create --flavor {small} --image {red} --nic none --wait web")
    server = openstack("server show web -f value -c id").strip()
    cloud.wait_for_output(server, "(?s)HELLO red.*TICK")
    assert "TICK" in openstack("console log show web")

    openstack("server stop web")
    cloud.wait(server, "SHUTOFF")
    assert cloud.hosts_running(server) == []
    openstack("server start web")
    cloud.wait(server, "ACTIVE")
    cloud.wait_for_output(server, r"(?s)HELLO red.*HELLO red")

    openstack("server reboot --hard --wait web")
    cloud.wait_for_output(server, r"(?s)(HELLO red.*){3}")

    openstack("server pause web")
    cloud.wait(server, "PAUSED")
    stopped_ticks = wait_until(lambda: _stopped_ticks(cloud, server), "the guest stops counting")
    openstack("server unpause web")
    cloud.wait(server, "ACTIVE")
    _assert_counting(cloud, server, stopped_ticks[-1])

    openstack("server suspend web")
    cloud.wait(server, "SUSPENDED")
    assert cloud.hosts_running(server) == []
    stopped_ticks = cloud.ticks(server)
    openstack("server resume web")
    cloud.wait(server, "ACTIVE")
    _assert_counting(cloud, server, stopped_ticks[-1])

    openstack("server image create --name snapshot --wait web")
    openstack(f"server create --flavor {small} --image snapshot --nic none --wait copy")
    copy = openstack("server show copy -f value -c id").strip()
    cloud.wait_for_output(copy, "HELLO red")

    before = cloud.host_of(server)
    openstack(f"server resize --flavor {large} web")
    cloud.wait(server, "VERIFY_RESIZE")
    assert cloud.host_of(server) != before
    openstack("server resize confirm web")
    cloud.wait(server, "ACTIVE")
    cloud.wait_for_output(server, "HELLO red")

    openstack(f"server rebuild --image {blue} --wait web")
    cloud.wait_for_output(server, "HELLO blue")
    openstack(f"server rescue --image {red} web")
    cloud.wait(server, "RESCUE")
    cloud.wait_for_output(server, "HELLO red")
    openstack("server unrescue web")
    cloud.wait(server, "ACTIVE")
    cloud.wait_for_output(server, r"(?s)HELLO red.*HELLO blue")

    openstack("server delete --wait web copy")
    cloud.wait_until_clean()


def test_server_that_shuts_itself_down_is_shut_off(cloud: RealCloud) -> None:
    server = cloud.boot("stopping", cloud.micro_image())
    host = cloud.hosts[cloud.host_of(server)]

    host.execute("virsh", "destroy", f"kn-{server}")
    stopped = cloud.wait(server, "SHUTOFF")
    assert stopped["OS-EXT-STS:power_state"] == 4

    cloud.server_action(server, "os-start")
    cloud.wait(server, "ACTIVE")
    (pid,) = [
        line.split()[0]
        for line in host.execute("ps", "-ww", "-eo", "pid,args").splitlines()
        if server in line and "qemu-system" in line
    ]
    host.execute("kill", "-9", pid)
    cloud.wait(server, "SHUTOFF")
    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_until_deleted(server)


def test_guests_survive_agent_and_control_plane(cloud: RealCloud) -> None:
    server = cloud.boot("surviving", cloud.micro_image())
    cloud.wait_for_output(server, "TICK 00002")
    name = cloud.host_of(server)

    cloud.kill_agent(name)
    cloud.kill_control()
    cloud.control.start()
    cloud.start_agent(name)
    cloud.wait_for_host(name, "up")

    assert cloud.show(server)["status"] == "ACTIVE"
    _assert_counting(cloud, server, cloud.ticks(server)[-1])
    assert cloud.console_output(server).count("HELLO") == 1
    delete_servers(cloud, server)


def _stopped_ticks(cloud: RealCloud, server: str) -> list[int] | None:
    """The guest's counts if it does not count any more; the last output may arrive late."""
    counted = cloud.ticks(server)
    time.sleep(2.5)
    return counted if cloud.ticks(server) == counted else None


def _assert_counting(cloud: RealCloud, server: str, number: int) -> None:
    """Assert that the counter of the last boot passes the number without a gap."""
    wait_until(lambda: cloud.ticks(server)[-1] > number + 1, "the guest counts on")
    last = re.split("HELLO", cloud.console_output(server))[-1]
    ticks = [int(tick) for tick in re.findall(r"TICK (\d{5})", last)]
    assert ticks == list(range(ticks[0], ticks[-1] + 1))
