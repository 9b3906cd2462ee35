"""A host whose libvirt is away: it counts as down, its guests go on, and what was asked for is done later."""

from __future__ import annotations

from tests.support.virt_cloud import RealCloud
from tests.virt.clouds import delete


def test_libvirt_is_away(short_timeouts: RealCloud) -> None:
    cloud = short_timeouts
    servers = {name: cloud.boot(name, cloud.micro(), host="one") for name in ("on", "off", "paused", "gone")}
    for server in servers.values():
        cloud.says(server, "TICK 00001")
    cloud.hosts["one"].kill_libvirt()
    # For who asks in this moment, it is the host that is slow.
    servers["new"] = cloud.boot("new", cloud.micro(), wait=False, host="one")
    cloud.act(servers["off"], "os-stop")
    cloud.act(servers["paused"], "pause")
    assert cloud.client().delete("compute", f"/servers/{servers['gone']}").status == 204
    cloud.wait_down("one")
    assert cloud.runs(servers["on"]) == ["one"]
    assert cloud.show(servers["on"])["status"] == "ACTIVE"

    cloud.hosts["one"].start_libvirt()
    cloud.wait_host("one", "up")
    cloud.wait_gone(servers.pop("gone"))
    for name, status in (("off", "SHUTOFF"), ("paused", "PAUSED"), ("on", "ACTIVE"), ("new", "ACTIVE")):
        cloud.wait(servers[name], status)
    assert cloud.said(servers["on"]).count("HELLO") == 1
    delete(cloud, *servers.values())
