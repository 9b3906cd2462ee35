"""A server with volumes through the public APIs: moves, volume extension, host failure."""

from __future__ import annotations

import asyncio

from kilonova.volume.exports.daemon import Daemon
from tests.support.virt_cloud import RealCloud
from tests.support.virt_hosts import wait_until
from tests.volume.exports import support

GIB = 1 << 30


def count_exports(cloud: RealCloud) -> int:
    async def count() -> int:
        async with Daemon(cloud.data / "exports", cloud.site.address, 0).session(start=False) as session:
            return len(await session.exports()) if session is not None else 0

    return asyncio.run(count())


def volume_status(cloud: RealCloud, volume_id: str) -> str:
    answer = cloud.client(version="3.60").get("volume", f"/volumes/{volume_id}")
    return str(answer.json()["volume"]["status"]) if answer.status == 200 else "deleted"


def wait_for_other_host(cloud: RealCloud, server: str, first: str) -> str:
    wait_until(lambda: cloud.host_of(server) != first, "the server is on another host")
    cloud.wait(server, "ACTIVE")
    return cloud.host_of(server)


def test_server_with_volumes_across_moves_and_host_failure(short_timeouts: RealCloud) -> None:
    cloud = short_timeouts
    image = cloud.image("red", cloud.site.micro_image("red").read_bytes(), hw_video_model="cirrus")
    root = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume"}
    volume = {"volume_size": 1, "delete_on_termination": True}
    server = cloud.boot("web", None, block_device_mapping_v2=[{**root, **volume}])
    cloud.wait_for_output(server, "TICK 00001")
    first = cloud.host_of(server)
    assert "cirrus" in cloud.hosts[first].execute("virsh", "dumpxml", f"kn-{server}")
    volume_id = cloud.client(version="3.60").post("volume", "/volumes", {"volume": {"size": 1}}).json()["volume"]["id"]
    wait_until(lambda: volume_status(cloud, volume_id) == "available", "the volume is available")
    attached = {"volumeAttachment": {"volumeId": volume_id}}
    answer = cloud.client().post("compute", f"/servers/{server}/os-volume_attachments", attached)
    assert answer.status == 200, answer.body
    wait_until(lambda: volume_status(cloud, volume_id) == "in-use", "the volume is attached")
    wait_until(lambda: count_exports(cloud) == 2, "both volumes are exported")

    cloud.server_action(server, "os-migrateLive", {"host": None, "block_migration": "auto"})
    second = wait_for_other_host(cloud, server, first)
    ticks = cloud.ticks(server)
    assert ticks == list(range(1, ticks[-1] + 1))
    wait_until(lambda: count_exports(cloud) == 2, "the source has no exports any more")

    # The migrated guest also reconnects when the volume service restarts.
    domain = f"kn-{server}"
    nodes = '{"execute": "query-named-block-nodes", "arguments": {"flat": true}}'
    host = cloud.hosts[second]
    wait_until(
        lambda: host.execute("virsh", "qemu-monitor-command", domain, nodes).count('"kn-') == 2,
        "both NBD clients reconnect",
    )
    support.kill(cloud.data)
    wait_until(lambda: count_exports(cloud) == 2, "the daemon is restarted")

    body = {"os-extend": {"new_size": 2}}
    answer = cloud.client(version="3.60").post("volume", f"/volumes/{volume_id}/action", body)
    assert answer.status == 202, answer.body
    wait_until(
        lambda: f"{2 * GIB}" in host.execute("virsh", "domblkinfo", domain, "vdb"), "the guest sees the new size"
    )

    cloud.cut_power(second)
    cloud.wait_until_down(second)
    cloud.server_action(server, "evacuate", {}, version="2.95")
    # Since 2.95 an evacuated server is stopped.
    wait_until(lambda: cloud.host_of(server) == first, "the server is on another host")
    cloud.wait(server, "SHUTOFF")
    cloud.server_action(server, "os-start")
    cloud.wait(server, "ACTIVE")
    cloud.wait_for_output(server, "HELLO red")
    wait_until(lambda: count_exports(cloud) == 2, "the failed host has no exports any more")

    cloud.client().delete("compute", f"/servers/{server}")
    cloud.wait_until_deleted(server)
    wait_until(lambda: volume_status(cloud, volume_id) == "available", "the volume is detached")
    wait_until(lambda: count_exports(cloud) == 0, "nothing is exported")
    cloud.power_on(second)
    cloud.wait_for_host(second, "up")
