"""A host whose libvirt is away: it counts as down, its guests go on, and what was asked for is done later."""

from __future__ import annotations

from pathlib import Path

from tests.support.virt_cloud import RealCloud, real_cloud


def test_libvirt_is_away(tmp_path: Path) -> None:
    # Time enough to ask for all of it before the host counts as down.
    with real_cloud(tmp_path / "data", hosts=("one",), more={"hosts": {"down_seconds": 15.0}}) as cloud:
        servers = {name: cloud.boot(name, cloud.micro()) for name in ("on", "off", "paused", "gone")}
        for server in servers.values():
            cloud.says(server, "TICK 00001")
        cloud.hosts["one"].kill_libvirt()
        # For who asks in this moment, it is the host that is slow.
        servers["new"] = cloud.boot("new", cloud.micro(), wait=False)
        cloud.act(servers["off"], "os-stop")
        cloud.act(servers["paused"], "pause")
        assert cloud.client().delete("compute", f"/servers/{servers['gone']}").status == 204
        cloud.wait_host("one", "down")
        assert cloud.runs(servers["on"]) == ["one"]
        assert cloud.show(servers["on"])["status"] == "ACTIVE"

        cloud.hosts["one"].start_libvirt()
        cloud.wait_host("one", "up")
        _end(cloud, servers)


def _end(cloud: RealCloud, servers: dict[str, str]) -> None:
    cloud.wait_gone(servers.pop("gone"))
    for name, status in (("off", "SHUTOFF"), ("paused", "PAUSED"), ("on", "ACTIVE"), ("new", "ACTIVE")):
        cloud.wait(servers[name], status)
    assert cloud.said(servers["on"]).count("HELLO") == 1
    for server in servers.values():
        cloud.client().delete("compute", f"/servers/{server}")
    for server in servers.values():
        cloud.wait_gone(server)
    cloud.wait_clean()
