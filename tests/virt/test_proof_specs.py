"""The founding features with real guests: unshelve to a host, moves without force, re-imaged volumes, the pin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import until
from tests.virt.clouds import delete

ZONES = {"one": "east", "two": "west"}
PIN = "pinned_availability_zone"


@pytest.fixture(scope="module")
def cloud(shared_disks: RealCloud) -> RealCloud:
    client = shared_disks.client()
    for host, zone in ZONES.items():
        made = client.post("compute", "/os-aggregates", {"aggregate": {"name": zone, "availability_zone": zone}})
        path = f"/os-aggregates/{made.json()['aggregate']['id']}/action"
        assert client.post("compute", path, {"add_host": {"host": host}}).status == 200
    return shared_disks


def test_unshelve_to_a_chosen_host(cloud: RealCloud) -> None:
    # Its disk is as large as its image, and is written to the image service and read again whole.
    server = cloud.boot("web", cloud.micro("red"), flavorRef=cloud.flavor("small", disk=0))
    cloud.says(server, "HELLO red")
    _, other = _places(cloud, server)
    cloud.act(server, "shelve")
    cloud.wait(server, "SHELVED_OFFLOADED")
    cloud.wait_clean()

    cloud.act(server, "unshelve", {"host": other})
    shown = cloud.wait(server, "ACTIVE")

    assert shown["OS-EXT-SRV-ATTR:host"] == other
    assert cloud.runs(server) == [other]
    cloud.says(server, "HELLO red")
    delete(cloud, server)


def test_a_live_migration_without_force_is_verified(cloud: RealCloud) -> None:
    server = cloud.boot("web", cloud.micro())
    cloud.says(server, "TICK 00002")
    first, other = _places(cloud, server)
    answer = cloud.client().post(
        "compute",
        f"/servers/{server}/action",
        {"os-migrateLive": {"host": other, "block_migration": "auto", "force": True}},
    )
    assert answer.status == 400

    _disable(cloud, other, True)
    cloud.act(server, "os-migrateLive", {"host": other, "block_migration": "auto"})
    cloud.wait(server, "ACTIVE")
    assert cloud.runs(server) == [first]

    _disable(cloud, other, False)
    cloud.act(server, "os-migrateLive", {"host": other, "block_migration": "auto"})
    until(lambda: cloud.host_of(server) == other, "it has moved")
    cloud.wait(server, "ACTIVE")
    assert cloud.runs(server) == [other]
    assert cloud.said(server).count("HELLO") == 1  # one file for both hosts, and one boot
    delete(cloud, server)


def test_evacuation_after_a_power_cut(cloud: RealCloud) -> None:
    server = cloud.boot("web", cloud.micro("red"))
    cloud.says(server, "TICK 00002")
    first, other = _places(cloud, server)
    cloud.cut_power(first)
    cloud.wait_down(first)
    cloud.wait_host(other, "up")

    cloud.act(server, "evacuate", {"host": other}, version="2.90")
    until(lambda: cloud.host_of(server) == other, "it is elsewhere")
    cloud.wait(server, "ACTIVE")
    cloud.says(server, r"(?s)HELLO red.*HELLO red")
    assert cloud.runs(server) == [other]

    cloud.power_on(first)
    cloud.wait_host(first, "up")
    assert cloud.hosts[first].domains() == {}
    assert cloud.runs(server) == [other]
    seen = cloud.ticks(server)[-1]
    until(lambda: cloud.ticks(server)[-1] > seen, "its disk is still there and it counts on")
    delete(cloud, server)


def test_another_image_boots_from_the_same_volume(cloud: RealCloud) -> None:
    red, blue = cloud.micro("red"), cloud.micro("blue")
    root = {
        "boot_index": 0,
        "uuid": red,
        "source_type": "image",
        "destination_type": "volume",
        "volume_size": 1,
        "delete_on_termination": True,
    }
    server = cloud.boot("web", None, block_device_mapping_v2=[root])
    cloud.says(server, "HELLO red")
    before = cloud.show(server)["os-extended-volumes:volumes_attached"]

    refused = cloud.client(version="2.92").post("compute", f"/servers/{server}/action", {"rebuild": {"imageRef": blue}})
    assert refused.status == 400
    cloud.act(server, "rebuild", {"imageRef": blue}, version="2.93")
    until(lambda: "HELLO blue" in cloud.console(server), "the new image boots")
    cloud.wait(server, "ACTIVE")

    after = cloud.show(server)["os-extended-volumes:volumes_attached"]
    assert [one["id"] for one in after] == [one["id"] for one in before]
    delete(cloud, server)


def test_the_pin_can_be_changed_and_is_obeyed(cloud: RealCloud) -> None:
    server = cloud.boot("web", cloud.micro(), availability_zone="east")
    client = cloud.client(version="2.104")
    cloud.says(server, "TICK 00002")
    cloud.act(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    cloud.wait(server, "ACTIVE")
    assert cloud.host_of(server) == "one"

    assert _pin(client, server, None) == 200
    cloud.act(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    until(lambda: cloud.host_of(server) == "two", "it has moved")
    cloud.wait(server, "ACTIVE")
    assert _pin(client, server, "east") == 409
    assert _pin(client, server, "west") == 200
    assert cloud.runs(server) == ["two"]
    delete(cloud, server)


def _pin(client: Any, server: str, zone: str | None) -> int:
    status: int = client.put("compute", f"/servers/{server}", {"server": {PIN: zone}}).status
    return status


def _places(cloud: RealCloud, server: str) -> tuple[str, str]:
    """Where it is, and where it could be."""
    here = cloud.host_of(server)
    return here, next(name for name in cloud.hosts if name != here)


def _disable(cloud: RealCloud, host: str, disabled: bool) -> None:
    client = cloud.client()
    (service,) = client.get("compute", f"/os-services?host={host}&binary=nova-compute").json()["services"]
    body = {"status": "disabled" if disabled else "enabled"}
    assert client.put("compute", f"/os-services/{service['id']}", body).status == 200
