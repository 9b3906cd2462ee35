"""A server on volumes of the built-in service, through the public APIs: it moves, its volumes grow, its host dies."""

from __future__ import annotations

import asyncio

from kilonova.volume.exports.daemon import Daemon
from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import until
from tests.volume.exports import support

GIB = 1 << 30


def exports(cloud: RealCloud) -> int:
    async def ask() -> int:
        async with Daemon(cloud.data / "exports", cloud.site.address, 0).session(start=False) as session:
            return len(await session.exports()) if session is not None else 0

    return asyncio.run(ask())


def status(cloud: RealCloud, volume_id: str) -> str:
    answer = cloud.client(version="3.60").get("volume", f"/volumes/{volume_id}")
    return str(answer.json()["volume"]["status"]) if answer.status == 200 else "gone"


def elsewhere(cloud: RealCloud, server: str, first: str) -> str:
    until(lambda: cloud.host_of(server) != first, "it is elsewhere")
    cloud.wait(server, "ACTIVE")
    return cloud.host_of(server)


def test_a_server_on_volumes(short_timeouts: RealCloud) -> None:
    cloud = short_timeouts
    image = cloud.image("red", cloud.site.micro_image("red").read_bytes(), hw_video_model="cirrus")
    root = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume"}
    kept = {"volume_size": 1, "delete_on_termination": True}
    server = cloud.boot("web", None, block_device_mapping_v2=[{**root, **kept}])
    cloud.says(server, "TICK 00001")
    first = cloud.host_of(server)
    assert "cirrus" in cloud.hosts[first].do("virsh", "dumpxml", f"kn-{server}")
    made = cloud.client(version="3.60").post("volume", "/volumes", {"volume": {"size": 1}}).json()["volume"]["id"]
    until(lambda: status(cloud, made) == "available", "the volume is made")
    attached = {"volumeAttachment": {"volumeId": made}}
    answer = cloud.client().post("compute", f"/servers/{server}/os-volume_attachments", attached)
    assert answer.status == 200, answer.body
    until(lambda: status(cloud, made) == "in-use", "the volume is attached")
    until(lambda: exports(cloud) == 2, "both volumes are exported")

    cloud.act(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    second = elsewhere(cloud, server, first)
    ticks = cloud.ticks(server)
    assert ticks == list(range(1, ticks[-1] + 1))
    until(lambda: exports(cloud) == 2, "the source reaches the volumes no more")

    # The guest of the destination waits too.
    domain = f"kn-{server}"
    nodes = '{"execute": "query-named-block-nodes", "arguments": {"flat": true}}'
    host = cloud.hosts[second]
    until(lambda: host.do("virsh", "qemu-monitor-command", domain, nodes).count('"kn-') == 2, "its clients wait")
    support.kill(cloud.data)
    until(lambda: exports(cloud) == 2, "the daemon is back")

    grown = {"os-extend": {"new_size": 2}}
    answer = cloud.client(version="3.60").post("volume", f"/volumes/{made}/action", grown)
    assert answer.status == 202, answer.body
    until(lambda: f"{2 * GIB}" in host.do("virsh", "domblkinfo", domain, "vdb"), "the guest sees that it has grown")

    cloud.cut_power(second)
    cloud.wait_down(second)
    cloud.act(server, "evacuate", {}, version="2.95")
    # From 2.95 on an evacuated server stands still.
    until(lambda: cloud.host_of(server) == first, "it is elsewhere")
    cloud.wait(server, "SHUTOFF")
    cloud.act(server, "os-start")
    cloud.wait(server, "ACTIVE")
    cloud.says(server, "HELLO red")
    until(lambda: exports(cloud) == 2, "the dead host reaches the volumes no more")

    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_gone(server)
    until(lambda: status(cloud, made) == "available", "the volume is free")
    until(lambda: exports(cloud) == 0, "nothing is exported")
    cloud.power_on(second)
    cloud.wait_host(second, "up")
