"""With libvirt guests: unshelve to a host, verified moves, rebuild of volumes, availability zone pin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import wait_until
from tests.virt.clouds import delete_servers

ZONES = {"one": "east", "two": "west"}
PINNED_ZONE = "pinned_availability_zone"


@pytest.fixture(scope="module")
def cloud(shared_disks: RealCloud) -> RealCloud:
    client = shared_disks.client()
    for host, zone in ZONES.items():
        made = client.post("compute", "/os-aggregates", {"aggregate": {"name": zone, "availability_zone": zone}})
        path = f"/os-aggregates/{made.json()['aggregate']['id']}/action"
        assert client.post("compute", path, {"add_host": {"host": host}}).status == 200
    return shared_disks


def test_unshelve_to_a_chosen_host(cloud: RealCloud) -> None:
    # Without a disk size in the flavor, the uploaded disk is as small as the image.
    server = cloud.boot("web", cloud.micro_image("red"), flavorRef=cloud.flavor("small", disk=0))
    cloud.wait_for_output(server, "HELLO red")
    _, other = _current_and_other_host(cloud, server)
    cloud.server_action(server, "shelve")
    cloud.wait(server, "SHELVED_OFFLOADED")
    cloud.wait_until_clean()

    cloud.server_action(server, "unshelve", {"host": other})
    shown = cloud.wait(server, "ACTIVE")

    assert shown["OS-EXT-SRV-ATTR:host"] == other
    assert cloud.hosts_running(server) == [other]
    cloud.wait_for_output(server, "HELLO red")
    delete_servers(cloud, server)


def test_live_migration_to_a_host_is_verified_by_the_scheduler(cloud: RealCloud) -> None:
    server = cloud.boot("web", cloud.micro_image())
    cloud.wait_for_output(server, "TICK 00002")
    first, other = _current_and_other_host(cloud, server)
    answer = cloud.client().post(
        "compute",
        f"/servers/{server}/action",
        {"os-migrateLive": {"host": other, "block_migration": "auto", "force": True}},
    )
    assert answer.status == 400

    _set_service_status(cloud, other, "disabled")
    cloud.server_action(server, "os-migrateLive", {"host": other, "block_migration": "auto"})
    cloud.wait(server, "ACTIVE")
    assert cloud.hosts_running(server) == [first]

    _set_service_status(cloud, other, "enabled")
    cloud.server_action(server, "os-migrateLive", {"host": other, "block_migration": "auto"})
    wait_until(lambda: cloud.host_of(server) == other, "the server has moved")
    cloud.wait(server, "ACTIVE")
    assert cloud.hosts_running(server) == [other]
    assert (
        cloud.console_output(server).count("HELLO") == 1
    )  # both hosts share the console log, and the guest booted once
    delete_servers(cloud, server)


def test_evacuation_after_a_power_cut(cloud: RealCloud) -> None:
    server = cloud.boot("web", cloud.micro_image("red"))
    cloud.wait_for_output(server, "TICK 00002")
    first, other = _current_and_other_host(cloud, server)
    cloud.cut_power(first)
    cloud.wait_until_down(first)
    cloud.wait_for_host(other, "up")

    cloud.server_action(server, "evacuate", {"host": other}, version="2.90")
    wait_until(lambda: cloud.host_of(server) == other, "the server is on the other host")
    cloud.wait(server, "ACTIVE")
    cloud.wait_for_output(server, r"(?s)HELLO red.*HELLO red")
    assert cloud.hosts_running(server) == [other]

    cloud.power_on(first)
    cloud.wait_for_host(first, "up")
    assert cloud.hosts[first].domains() == {}
    assert cloud.hosts_running(server) == [other]
    seen = cloud.ticks(server)[-1]
    wait_until(lambda: cloud.ticks(server)[-1] > seen, "the guest still counts")
    delete_servers(cloud, server)


def test_rebuild_of_volume_backed_server(cloud: RealCloud) -> None:
    red, blue = cloud.micro_image("red"), cloud.micro_image("blue")
    root = {
        "boot_index": 0,
        "uuid": red,
        "source_type": "image",
        "destination_type": "volume",
        "volume_size": 1,
        "delete_on_termination": True,
    }
    server = cloud.boot("web", None, block_device_mapping_v2=[root])
    cloud.wait_for_output(server, "HELLO red")
    before = cloud.show(server)["os-extended-volumes:volumes_attached"]

    refused = cloud.client(version="2.92").post("compute", f"/servers/{server}/action", {"rebuild": {"imageRef": blue}})
    assert refused.status == 400
    cloud.server_action(server, "rebuild", {"imageRef": blue}, version="2.93")
    wait_until(lambda: "HELLO blue" in cloud.console(server), "the new image boots")
    cloud.wait(server, "ACTIVE")

    after = cloud.show(server)["os-extended-volumes:volumes_attached"]
    assert [volume["id"] for volume in after] == [volume["id"] for volume in before]
    delete_servers(cloud, server)


def test_changed_availability_zone_pin_is_respected(cloud: RealCloud) -> None:
    server = cloud.boot("web", cloud.micro_image(), availability_zone="east")
    client = cloud.client(version="2.104")
    cloud.wait_for_output(server, "TICK 00002")
    cloud.server_action(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    cloud.wait(server, "ACTIVE")
    assert cloud.host_of(server) == "one"

    assert _set_pinned_zone(client, server, None) == 200
    cloud.server_action(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    wait_until(lambda: cloud.host_of(server) == "two", "the server has moved")
    cloud.wait(server, "ACTIVE")
    assert _set_pinned_zone(client, server, "east") == 409
    assert _set_pinned_zone(client, server, "west") == 200
    assert cloud.hosts_running(server) == ["two"]
    delete_servers(cloud, server)


def _set_pinned_zone(client: Any, server: str, zone: str | None) -> int:
    status: int = client.put("compute", f"/servers/{server}", {"server": {PINNED_ZONE: zone}}).status
    return status


def _current_and_other_host(cloud: RealCloud, server: str) -> tuple[str, str]:
    """The server's host and the other host."""
    current = cloud.host_of(server)
    return current, next(name for name in cloud.hosts if name != current)


def _set_service_status(cloud: RealCloud, host: str, status: str) -> None:
    client = cloud.client()
    (service,) = client.get("compute", f"/os-services?host={host}&binary=nova-compute").json()["services"]
    assert client.put("compute", f"/os-services/{service['id']}", {"status": status}).status == 200
