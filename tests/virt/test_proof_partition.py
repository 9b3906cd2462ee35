"""Hosts that are only cut off: their guests go on, and an evacuation must not start one twice on the same disk."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from typing import Any

from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import until
from tests.virt.clouds import delete


def test_a_disk_in_use_is_not_taken(shared_disks: RealCloud) -> None:
    cloud = shared_disks
    server = cloud.boot("web", cloud.micro("red"))
    cloud.says(server, "TICK 00002")
    first, _ = _cut_off(cloud, server)

    cloud.act(server, "evacuate", {}, version="2.90")
    until(lambda: _last(cloud, server)["message"] == "Error", "the evacuation has failed")

    assert cloud.runs(server) == [first]
    assert cloud.host_of(server) == first
    assert "its disk is in use there" in _said(cloud, server)
    cloud.start_agent(first)
    cloud.wait_host(first, "up")
    cloud.wait(server, "ACTIVE")
    assert cloud.said(server).count("HELLO") == 1
    delete(cloud, server)


def test_volumes_are_taken_from_who_has_them(shared_disks: RealCloud) -> None:
    cloud = shared_disks
    root = {"boot_index": 0, "uuid": cloud.micro("red"), "source_type": "image", "destination_type": "volume"}
    kept = {"volume_size": 1, "delete_on_termination": True}
    server = cloud.boot("web", None, block_device_mapping_v2=[{**root, **kept}])
    cloud.says(server, "TICK 00002")
    first, other = _cut_off(cloud, server)
    way = _way_to_root(cloud, first, server)
    assert _is_open(cloud, first, way)

    cloud.act(server, "evacuate", {}, version="2.90")
    until(lambda: cloud.host_of(server) == other, "it is elsewhere")
    cloud.wait(server, "ACTIVE")
    cloud.says(server, "HELLO red")

    # What still runs there has no disk any more, and goes before the host counts as up.
    assert cloud.runs(server) == list(cloud.hosts)
    assert not _is_open(cloud, first, way)
    assert _is_open(cloud, other, _way_to_root(cloud, other, server))
    cloud.start_agent(first)
    cloud.wait_host(first, "up")
    assert cloud.runs(server) == [other]
    delete(cloud, server)


def test_a_host_that_comes_back_is_cleared_before_it_is_up(short_timeouts: RealCloud) -> None:
    """Also if its agent ends again and again meanwhile."""
    cloud = short_timeouts
    server = cloud.boot("web", cloud.micro("red"))
    cloud.says(server, "TICK 00002")
    first, other = _cut_off(cloud, server)
    cloud.act(server, "evacuate", {}, version="2.90")
    until(lambda: cloud.host_of(server) == other, "it is elsewhere")
    cloud.wait(server, "ACTIVE")

    for seconds in (1.0, 1.5, 2.0):
        cloud.start_agent(first)
        time.sleep(seconds)
        cloud.kill_agent(first)
    cloud.start_agent(first)
    cloud.wait_host(first, "up")
    assert cloud.runs(server) == [other]
    assert cloud.hosts[first].domains() == {}
    delete(cloud, server)


def _cut_off(cloud: RealCloud, server: str) -> tuple[str, str]:
    """The host of the server, whose agent is gone, and the other one."""
    first = cloud.host_of(server)
    cloud.kill_agent(first)
    cloud.wait_down(first)
    return first, next(name for name in cloud.hosts if name != first)


def _way_to_root(cloud: RealCloud, host: str, server: str) -> str:
    source = ET.fromstring(cloud.hosts[host].do("virsh", "dumpxml", f"kn-{server}")).find("devices/disk/source")
    assert source is not None
    at = source.find("host")
    assert at is not None
    return f"nbd://{at.get('name')}:{at.get('port')}/{source.get('name')}"


def _is_open(cloud: RealCloud, host: str, way: str) -> bool:
    return '"virtual-size"' in cloud.hosts[host].do("qemu-img", "info", "--output=json", way, check=False)


def _last(cloud: RealCloud, server: str) -> dict[str, Any]:
    path = f"/servers/{server}/os-instance-actions"
    found: dict[str, Any] = cloud.client().get("compute", path).json()["instanceActions"][0]
    return found


def _said(cloud: RealCloud, server: str) -> str:
    """By the events of the last action, to administrators."""
    path = f"/servers/{server}/os-instance-actions/{_last(cloud, server)['request_id']}"
    return str(cloud.client().get("compute", path).json()["instanceAction"]["events"])
