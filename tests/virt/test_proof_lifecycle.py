"""The life of a real guest from outside, by the stock client: what its console says is what happened to it."""

from __future__ import annotations

import re
import time

import pytest

from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import until
from tests.virt.clouds import Client, delete


@pytest.fixture
def cloud(long_timeouts: RealCloud) -> RealCloud:
    return long_timeouts


def test_everything_that_can_happen_to_a_server(cloud: RealCloud, openstack: Client) -> None:
    red, blue = cloud.micro("red"), cloud.micro("blue")
    # Images are made of the small one, whole.
    small, large = cloud.flavor("small", disk=0), cloud.flavor("larger", ram=96, disk=1)

    openstack(f"server create --flavor {small} --image {red} --nic none --wait web")
    server = openstack("server show web -f value -c id").strip()
    cloud.says(server, "(?s)HELLO red.*TICK")
    assert "TICK" in openstack("console log show web")

    openstack("server stop web")
    cloud.wait(server, "SHUTOFF")
    assert cloud.runs(server) == []
    openstack("server start web")
    cloud.wait(server, "ACTIVE")
    cloud.says(server, r"(?s)HELLO red.*HELLO red")

    openstack("server reboot --hard --wait web")
    cloud.says(server, r"(?s)(HELLO red.*){3}")

    openstack("server pause web")
    cloud.wait(server, "PAUSED")
    stands = until(lambda: _stands_still(cloud, server), "the counter stands still")
    openstack("server unpause web")
    cloud.wait(server, "ACTIVE")
    _goes_on(cloud, server, stands[-1])

    openstack("server suspend web")
    cloud.wait(server, "SUSPENDED")
    assert cloud.runs(server) == []
    stands = cloud.ticks(server)
    openstack("server resume web")
    cloud.wait(server, "ACTIVE")
    _goes_on(cloud, server, stands[-1])

    openstack("server image create --name frozen --wait web")
    openstack(f"server create --flavor {small} --image frozen --nic none --wait again")
    again = openstack("server show again -f value -c id").strip()
    cloud.says(again, "HELLO red")

    before = cloud.host_of(server)
    openstack(f"server resize --flavor {large} web")
    cloud.wait(server, "VERIFY_RESIZE")
    assert cloud.host_of(server) != before
    openstack("server resize confirm web")
    cloud.wait(server, "ACTIVE")
    cloud.says(server, "HELLO red")

    openstack(f"server rebuild --image {blue} --wait web")
    cloud.says(server, "HELLO blue")
    openstack(f"server rescue --image {red} web")
    cloud.wait(server, "RESCUE")
    cloud.says(server, "HELLO red")
    openstack("server unrescue web")
    cloud.wait(server, "ACTIVE")
    cloud.says(server, r"(?s)HELLO red.*HELLO blue")

    openstack("server delete --wait web again")
    cloud.wait_clean()


def test_a_guest_that_ends_by_itself_is_shown_as_what_it_is(cloud: RealCloud) -> None:
    server = cloud.boot("short", cloud.micro())
    host = cloud.hosts[cloud.host_of(server)]

    host.do("virsh", "destroy", f"kn-{server}")
    stopped = cloud.wait(server, "SHUTOFF")
    assert stopped["OS-EXT-STS:power_state"] == 4

    cloud.act(server, "os-start")
    cloud.wait(server, "ACTIVE")
    (crashed,) = [
        line.split()[0]
        for line in host.do("ps", "-ww", "-eo", "pid,args").splitlines()
        if server in line and "qemu-system" in line
    ]
    host.do("kill", "-9", crashed)
    cloud.wait(server, "SHUTOFF")
    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_gone(server)


def test_guests_outlive_agent_and_control_plane(cloud: RealCloud) -> None:
    server = cloud.boot("steady", cloud.micro())
    cloud.says(server, "TICK 00002")
    name = cloud.host_of(server)

    cloud.kill_agent(name)
    cloud.kill_control()
    cloud.control.start()
    cloud.start_agent(name)
    cloud.wait_host(name, "up")

    assert cloud.show(server)["status"] == "ACTIVE"
    _goes_on(cloud, server, cloud.ticks(server)[-1])
    assert cloud.said(server).count("HELLO") == 1
    delete(cloud, server)


def _stands_still(cloud: RealCloud, server: str) -> list[int] | None:
    """What it has counted, if it does not go on. What it said just before it stopped may still be on its way."""
    counted = cloud.ticks(server)
    time.sleep(2.5)
    return counted if cloud.ticks(server) == counted else None


def _goes_on(cloud: RealCloud, server: str, number: int) -> None:
    """The counter of the last boot is beyond the number, and leaves nothing out."""
    until(lambda: cloud.ticks(server)[-1] > number + 1, "the counter goes on")
    last = re.split("HELLO", cloud.said(server))[-1]
    ticks = [int(tick) for tick in re.findall(r"TICK (\d{5})", last)]
    assert ticks == list(range(ticks[0], ticks[-1] + 1))
