"""Ports of other projects that name a server as their device: they are not its interfaces."""

from __future__ import annotations

from typing import Any

from kilonova.network import build as build_network
from tests.fuzz.resources import ApiCaller
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud


async def plant(c: FullCloud, server_id: str) -> dict[str, Any]:
    """A stranger's port with a security group of its own, whose device is the server."""
    network = ApiCaller(c, build_network(), "other")
    group = await network.make("/v2.0/security-groups", "security_group", name="strangers")
    port: dict[str, Any] = await network.make(
        "/v2.0/ports",
        "port",
        network_id=c.network_id,
        device_id=server_id,
        device_owner="compute:nova",
        security_groups=[group["id"]],
    )
    return port


async def read(c: FullCloud, port_id: str) -> dict[str, Any]:
    answer = await ApiCaller(c, build_network(), "other")("GET", f"/v2.0/ports/{port_id}", None, None)
    found: dict[str, Any] = answer.json()["port"]
    return found


def test_port_of_another_project_is_not_shown(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await c.boot_active()
            before = {
                path: (await c.get(f"/servers/{server['id']}{path}")).json()
                for path in ("", "/os-interface", "/os-security-groups", "/ips")
            }
            port = await plant(c, server["id"])
            after = {path: (await c.get(f"/servers/{server['id']}{path}")).json() for path in before}
            assert after == before
            for method in ("GET", "DELETE"):
                answer = await c.request(method, f"/servers/{server['id']}/os-interface/{port['id']}")
                assert fault(answer)[0] == 404
            remove = {"removeSecurityGroup": {"name": "strangers"}}
            assert (await c.post(f"/servers/{server['id']}/action", remove, as_="admin")).status == 404

    run(scenario())


def test_port_of_another_project_is_not_moved_or_deleted_with_the_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            port = await plant(c, server["id"])
            untouched = await read(c, port["id"])
            path = f"/servers/{server['id']}/action"
            assert (await c.post(path, {"migrate": None}, as_="admin", version="2.56")).status == 202
            await c.wait_until_settled(server["id"])
            assert (await c.post(path, {"confirmResize": None}, as_="admin")).status == 204
            await c.wait_until_settled(server["id"])
            assert await read(c, port["id"]) == untouched
            admin = ApiCaller(c, build_network())
            shown = (await admin("GET", f"/v2.0/ports/{port['id']}", None, None)).json()["port"]
            assert shown["binding:host_id"] == ""
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await c.wait_until_deleted(server["id"])
            assert await read(c, port["id"]) == untouched

    run(scenario())


def test_visible_port_of_another_project_cannot_be_attached(database_url: str) -> None:
    """The owner of a network sees the ports of other projects in it."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            admin, network = ApiCaller(c, build_network()), ApiCaller(c, build_network(), f"admin@{DEMO}")
            shared = await network.make("/v2.0/networks", "network", name="ours", shared=True)
            await network.make("/v2.0/subnets", "subnet", network_id=shared["id"], cidr="10.44.0.0/24", ip_version=4)
            theirs = await ApiCaller(c, build_network(), "other").make("/v2.0/ports", "port", network_id=shared["id"])
            body = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": [{"port": theirs["id"]}]}
            answer = await c.post("/servers", {"server": body}, version="2.96")
            assert fault(answer)[0] == 400
            assert "belongs to another project" in fault(answer)[2]
            booted = await c.boot(networks="none")
            server = await c.wait_until_settled(booted["id"])
            attach = {"interfaceAttachment": {"port_id": theirs["id"]}}
            for as_ in ("member", "admin"):
                answer = await c.post(f"/servers/{server['id']}/os-interface", attach, as_=as_)
                assert fault(answer)[0] == 400
            shown = (await admin("GET", f"/v2.0/ports/{theirs['id']}", None, None)).json()["port"]
            assert (shown["device_id"], shown["binding:host_id"]) == ("", "")

    run(scenario())
