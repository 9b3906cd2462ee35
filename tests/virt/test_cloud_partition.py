"""Unreachable hosts whose guests still run: an evacuation must not start a second guest on the same disk."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from typing import Any

from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import wait_until
from tests.virt.clouds import delete_servers


def test_evacuation_of_guest_with_locked_disk_is_refused(shared_disks: RealCloud) -> None:
    cloud = shared_disks
    server = cloud.boot("web", cloud.micro_image("red"))
    cloud.wait_for_output(server, "TICK 00002")
    first, _ = _stop_agent(cloud, server)

    cloud.server_action(server, "evacuate", {}, version="2.90")
    wait_until(lambda: _last_action(cloud, server)["message"] == "Error", "the evacuation has failed")

    assert cloud.hosts_running(server) == [first]
    assert cloud.host_of(server) == first
    assert "its disk disk is locked" in _event_messages(cloud, server)
    cloud.start_agent(first)
    cloud.wait_for_host(first, "up")
    cloud.wait(server, "ACTIVE")
    assert cloud.console_output(server).count("HELLO") == 1
    delete_servers(cloud, server)


def test_evacuation_disconnects_volumes_from_the_unreachable_host(shared_disks: RealCloud) -> None:
    cloud = shared_disks
    root = {"boot_index": 0, "uuid": cloud.micro_image("red"), "source_type": "image", "destination_type": "volume"}
    volume = {"volume_size": 1, "delete_on_termination": True}
    server = cloud.boot("web", None, block_device_mapping_v2=[{**root, **volume}])
    cloud.wait_for_output(server, "TICK 00002")
    first, other = _stop_agent(cloud, server)
    export_url = _root_volume_export_url(cloud, first, server)
    assert _can_open(cloud, first, export_url)

    cloud.server_action(server, "evacuate", {}, version="2.90")
    wait_until(lambda: cloud.host_of(server) == other, "the server is on the other host")
    cloud.wait(server, "ACTIVE")
    cloud.wait_for_output(server, "HELLO red")

    # The old guest has lost its disk, and is destroyed before the host counts as up.
    assert cloud.hosts_running(server) == list(cloud.hosts)
    assert not _can_open(cloud, first, export_url)
    assert _can_open(cloud, other, _root_volume_export_url(cloud, other, server))
    cloud.start_agent(first)
    cloud.wait_for_host(first, "up")
    assert cloud.hosts_running(server) == [other]
    delete_servers(cloud, server)


def test_returning_host_is_cleaned_up_before_it_is_up(short_timeouts: RealCloud) -> None:
    """Also if its agent dies repeatedly meanwhile."""
    cloud = short_timeouts
    server = cloud.boot("web", cloud.micro_image("red"))
    cloud.wait_for_output(server, "TICK 00002")
    first, other = _stop_agent(cloud, server)
    cloud.server_action(server, "evacuate", {}, version="2.90")
    wait_until(lambda: cloud.host_of(server) == other, "the server is on the other host")
    cloud.wait(server, "ACTIVE")

    for seconds in (1.0, 1.5, 2.0):
        cloud.start_agent(first)
        time.sleep(seconds)
        cloud.kill_agent(first)
    cloud.start_agent(first)
    cloud.wait_for_host(first, "up")
    assert cloud.hosts_running(server) == [other]
    assert cloud.hosts[first].domains() == {}
    delete_servers(cloud, server)


def _stop_agent(cloud: RealCloud, server: str) -> tuple[str, str]:
    """Kill the agent of the server's host. Returns this host and the other one."""
    first = cloud.host_of(server)
    cloud.kill_agent(first)
    cloud.wait_until_down(first)
    return first, next(name for name in cloud.hosts if name != first)


def _root_volume_export_url(cloud: RealCloud, host: str, server: str) -> str:
    source = ET.fromstring(cloud.hosts[host].execute("virsh", "dumpxml", f"kn-{server}")).find("devices/disk/source")
    assert source is not None
    server_address = source.find("host")
    assert server_address is not None
    return f"nbd://{server_address.get('name')}:{server_address.get('port')}/{source.get('name')}"


def _can_open(cloud: RealCloud, host: str, url: str) -> bool:
    return '"virtual-size"' in cloud.hosts[host].execute("qemu-img", "info", "--output=json", url, check=False)


def _last_action(cloud: RealCloud, server: str) -> dict[str, Any]:
    path = f"/servers/{server}/os-instance-actions"
    found: dict[str, Any] = cloud.client().get("compute", path).json()["instanceActions"][0]
    return found


def _event_messages(cloud: RealCloud, server: str) -> str:
    """The events of the last action as administrators see them."""
    path = f"/servers/{server}/os-instance-actions/{_last_action(cloud, server)['request_id']}"
    return str(cloud.client().get("compute", path).json()["instanceAction"]["events"])
