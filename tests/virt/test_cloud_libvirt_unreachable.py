"""A host with an unreachable libvirt counts as down. Its guests run, and requests are completed later."""

from __future__ import annotations

from tests.support.virt_cloud import RealCloud
from tests.virt.clouds import delete_servers


def test_host_with_unreachable_libvirt_is_down(short_timeouts: RealCloud) -> None:
    cloud = short_timeouts
    servers = {
        name: cloud.boot(name, cloud.micro_image(), host="one") for name in ("running", "stopped", "paused", "deleted")
    }
    for server in servers.values():
        cloud.wait_for_output(server, "TICK 00001")
    cloud.hosts["one"].kill_libvirt()
    # These requests arrive before the host counts as down.
    servers["new"] = cloud.boot("new", cloud.micro_image(), wait=False, host="one")
    cloud.server_action(servers["stopped"], "os-stop")
    cloud.server_action(servers["paused"], "pause")
    assert cloud.client().delete("compute", f"/servers/{servers['deleted']}").status == 204
    cloud.wait_until_down("one")
    assert cloud.hosts_running(servers["running"]) == ["one"]
    assert cloud.show(servers["running"])["status"] == "ACTIVE"

    cloud.hosts["one"].start_libvirt()
    cloud.wait_for_host("one", "up")
    cloud.wait_until_deleted(servers.pop("deleted"))
    for name, status in (("stopped", "SHUTOFF"), ("paused", "PAUSED"), ("running", "ACTIVE"), ("new", "ACTIVE")):
        cloud.wait(servers[name], status)
    assert cloud.console_output(servers["running"]).count("HELLO") == 1
    delete_servers(cloud, *servers.values())
