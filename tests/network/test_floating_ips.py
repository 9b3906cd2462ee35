"""Floating IPs."""

from __future__ import annotations

import asyncio

from tests.network.support import (
    create_external_network,
    net,
)


def test_floating_ip_is_associated_with_port(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await create_external_network(cloud)
            network, subnet = await cloud.network_with_subnet()
            port = await cloud.create("port", network_id=network["id"])
            floating = await cloud.create("floatingip", floating_network_id=public["id"], description="web")
            assert (floating["status"], floating["port_id"], floating["port_details"]) == ("DOWN", None, None)
            path = f"/floatingips/{floating['id']}"
            leads = {"floatingip": {"port_id": port["id"]}}
            assert await cloud.refused("PUT", path, leads) == (404, "ExternalGatewayForFloatingIPNotFound")
            router = await cloud.create("router", external_gateway_info={"network_id": public["id"]})
            interface = {"subnet_id": subnet["id"]}
            await cloud.ok("PUT", f"/routers/{router['id']}/add_router_interface", interface)
            led = await cloud.update("floatingip", floating, port_id=port["id"])
            assert (led["status"], led["fixed_ip_address"], led["router_id"]) == ("ACTIVE", "10.1.0.2", router["id"])
            assert (led["floating_ip_address"], led["description"]) == (floating["floating_ip_address"], "web")
            assert [item["id"] for item in await cloud.list_all("floatingip", {"port_id": port["id"]})] == [led["id"]]
            keys = ("name", "network_id", "mac_address", "admin_state_up", "status", "device_id", "device_owner")
            now = await cloud.show("port", port["id"])
            assert led["port_details"] == {key: now[key] for key in keys}
            assert await cloud.show("floatingip", led["id"]) == led
            second = {"floatingip": {"floating_network_id": public["id"], "port_id": port["id"]}}
            assert await cloud.refused("POST", "/floatingips", second) == (409, "FloatingIPPortAlreadyAssociated")
            stuck = await cloud.refused("PUT", f"/routers/{router['id']}/remove_router_interface", interface)
            assert stuck == (409, "RouterInterfaceInUseByFloatingIP")
            gateway = await cloud.refused("PUT", f"/routers/{router['id']}", {"router": {"external_gateway_info": {}}})
            assert gateway == (409, "RouterExternalGatewayInUseByFloatingIp")
            assert (await cloud.update("floatingip", floating, port_id=None))["status"] == "DOWN"
            await cloud.update("floatingip", floating, port_id=port["id"], fixed_ip_address="10.1.0.2")
            await cloud.ok("DELETE", f"/ports/{port['id']}")
            loose = await cloud.show("floatingip", floating["id"])
            assert (loose["port_id"], loose["status"], loose["router_id"]) == (None, "DOWN", None)
            await cloud.ok("DELETE", path)
            assert await cloud.refused("GET", path) == (404, "FloatingIPNotFound")

    asyncio.run(scenario())


def test_deleting_external_network_deletes_unassociated_floating_ips(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public, other = (
                await create_external_network(cloud),
                await create_external_network(cloud, "198.51.100.0/24"),
            )
            floating = [await cloud.create("floatingip", floating_network_id=public["id"]) for _ in range(2)]
            kept = await cloud.create("floatingip", floating_network_id=other["id"])
            path = f"/networks/{public['id']}"
            router = await cloud.create("router", external_gateway_info={"network_id": public["id"]})
            assert await cloud.refused("DELETE", path, as_="admin") == (409, "NetworkInUse")
            assert len(await cloud.list_all("floatingip")) == 3
            await cloud.ok("DELETE", f"/routers/{router['id']}")
            await cloud.ok("DELETE", path, as_="admin")
            assert await cloud.list_all("floatingip") == [kept]
            gone = await cloud.refused("GET", f"/floatingips/{floating[0]['id']}")
            assert gone == (404, "FloatingIPNotFound")
            assert await cloud.list_all("port", {"network_id": public["id"]}, "admin") == []

    asyncio.run(scenario())


def test_floating_ips_are_limited_and_hidden_from_other_projects(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await create_external_network(cloud, "192.0.2.0/29")
            body = {"floatingip": {"floating_network_id": public["id"]}}
            created = [await cloud.create("floatingip", **body["floatingip"]) for _ in range(5)]
            assert len({floating["floating_ip_address"] for floating in created}) == 5
            assert await cloud.refused("POST", "/floatingips", body) == (409, "IpAddressGenerationFailure")
            assert (await cloud.refused("GET", f"/floatingips/{created[0]['id']}", as_="other"))[0] == 404
            await cloud.ok("DELETE", f"/floatingips/{created[3]['id']}")
            address = created[3]["floating_ip_address"]
            chosen = {"floatingip": {**body["floatingip"], "floating_ip_address": address}}
            assert (await cloud.refused("POST", "/floatingips", chosen))[0] == 403
            assert (await cloud.create("floatingip", "admin", **chosen["floatingip"]))["floating_ip_address"] == address
            inside, _ = await cloud.network_with_subnet()
            wrong = {"floatingip": {"floating_network_id": inside["id"]}}
            assert await cloud.refused("POST", "/floatingips", wrong) == (400, "BadRequest")

    asyncio.run(scenario())
