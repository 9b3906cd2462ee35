"""Routers, their gateways, interfaces and extra routes."""

from __future__ import annotations

import asyncio

from tests.network.support import (
    create_external_network,
    net,
)


def test_router_has_gateway_and_interfaces(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await create_external_network(cloud)
            network, subnet = await cloud.network_with_subnet()
            router = await cloud.create("router", name="r", external_gateway_info={"network_id": public["id"]})
            info = router["external_gateway_info"]
            assert (info["network_id"], info["external_fixed_ips"][0]["ip_address"]) == (public["id"], "192.0.2.2")
            path = f"/routers/{router['id']}"
            joined = await cloud.ok("PUT", f"{path}/add_router_interface", {"subnet_id": subnet["id"]})
            assert joined["subnet_ids"] == [subnet["id"]]
            port = await cloud.show("port", joined["port_id"])
            assert port["fixed_ips"] == [{"subnet_id": subnet["id"], "ip_address": "10.1.0.1"}]
            assert (port["device_owner"], port["device_id"]) == ("network:router_interface", router["id"])
            assert port["status"] == "ACTIVE"
            assert (await cloud.refused("PUT", f"{path}/add_router_interface", {"subnet_id": subnet["id"]}))[0] == 400
            assert await cloud.refused("DELETE", path) == (409, "RouterInUse")
            assert await cloud.refused("DELETE", f"/ports/{port['id']}") == (409, "ServicePortInUse")
            assert await cloud.refused("DELETE", f"/networks/{network['id']}") == (409, "NetworkInUse")
            changed = await cloud.update(
                "router", router, routes=[{"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}], admin_state_up=False
            )
            assert (len(changed["routes"]), changed["admin_state_up"]) == (1, False)
            assert changed["external_gateway_info"] == info
            assert (await cloud.update("router", router, external_gateway_info=None))["external_gateway_info"] is None
            needed = await cloud.refused("PUT", f"{path}/remove_router_interface", {"subnet_id": subnet["id"]})
            assert needed == (409, "RouterInterfaceInUseByRoute")
            assert (await cloud.update("router", router, routes=None))["routes"] == []
            left = await cloud.ok("PUT", f"{path}/remove_router_interface", {"subnet_id": subnet["id"]})
            assert left["port_id"] == port["id"]
            again = await cloud.refused("PUT", f"{path}/remove_router_interface", {"subnet_id": subnet["id"]})
            assert again == (404, "RouterInterfaceNotFoundForSubnet")
            await cloud.ok("DELETE", path)
            assert await cloud.refused("GET", path) == (404, "RouterNotFound")
            assert await cloud.list_all("port", as_="admin") == []

    asyncio.run(scenario())


def test_extra_routes_are_added_and_removed(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await create_external_network(cloud)
            _, subnet = await cloud.network_with_subnet()
            router = await cloud.create("router", external_gateway_info={"network_id": public["id"]})
            path = f"/routers/{router['id']}"
            await cloud.ok("PUT", f"{path}/add_router_interface", {"subnet_id": subnet["id"]})
            one = {"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}
            two = {"destination": "10.9.0.0/16", "nexthop": "10.1.0.10"}
            out = {"destination": "10.8.0.0/16", "nexthop": "192.0.2.9"}
            attributes = await cloud.ok("PUT", f"{path}/add_extraroutes", {"router": {"routes": [one, out]}})
            assert attributes["router"]["routes"] == [one, out]
            attributes = await cloud.ok("PUT", f"{path}/add_extraroutes", {"router": {"routes": [two, one]}})
            assert attributes["router"]["routes"] == [one, out, two]
            gone = {"destination": "10.9.9.0/24", "nexthop": "10.1.0.9"}
            attributes = await cloud.ok("PUT", f"{path}/remove_extraroutes", {"router": {"routes": [one, gone]}})
            assert attributes["router"]["routes"] == [out, two]
            for wrong in (
                {"destination": "10.9.0.0/16", "nexthop": "10.2.0.9"},
                {"destination": "10.9.0.0/16", "nexthop": "10.1.0.1"},
                {"destination": "2001:db8::/64", "nexthop": "10.1.0.9"},
            ):
                for change in (
                    ("PUT", path, {"router": {"routes": [wrong]}}),
                    ("PUT", f"{path}/add_extraroutes", {"router": {"routes": [wrong]}}),
                ):
                    assert await cloud.refused(*change) == (400, "InvalidRoutes"), wrong
            many = [{"destination": f"10.9.{number}.0/24", "nexthop": "10.1.0.9"} for number in range(29)]
            too_many = await cloud.refused("PUT", f"{path}/add_extraroutes", {"router": {"routes": many}})
            assert too_many == (400, "RoutesExhausted")
            assert (await cloud.show("router", router["id"]))["routes"] == [out, two]
            assert await cloud.refused("PUT", f"{path}/add_extraroutes", {"router": {"routes": [one]}}, "other") == (
                404,
                "RouterNotFound",
            )

    asyncio.run(scenario())


def test_interface_from_existing_port(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet()
            port = await cloud.create("port", network_id=network["id"])
            router = await cloud.create("router")
            path = f"/routers/{router['id']}"
            joined = await cloud.ok("PUT", f"{path}/add_router_interface", {"port_id": port["id"]})
            assert joined["port_id"] == port["id"]
            again = await cloud.refused("PUT", f"{path}/add_router_interface", {"port_id": port["id"]})
            assert again == (409, "PortInUse")
            both = {"port_id": port["id"], "subnet_id": network["id"]}
            assert (await cloud.refused("PUT", f"{path}/add_router_interface", both))[0] == 400
            await cloud.ok("PUT", f"{path}/remove_router_interface", {"port_id": port["id"]})
            missing = await cloud.refused("PUT", f"{path}/remove_router_interface", {"port_id": port["id"]})
            assert missing == (404, "RouterInterfaceNotFound")

    asyncio.run(scenario())


def test_routers_of_other_projects_are_hidden(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            router = await cloud.create("router", "other", name="theirs")
            assert await cloud.list_all("router") == []
            for method, json in (("GET", None), ("PUT", {"router": {"name": "x"}}), ("DELETE", None)):
                assert await cloud.refused(method, f"/routers/{router['id']}", json) == (404, "RouterNotFound")
            assert (await cloud.refused("POST", "/routers", {"router": {"ha": True}}))[0] == 400
            inside, _ = await cloud.network_with_subnet()
            body = {"router": {"external_gateway_info": {"network_id": inside["id"]}}}
            assert (await cloud.refused("POST", "/routers", body))[0] == 400
            assert await cloud.list_all("router", as_="member") == []

    asyncio.run(scenario())


def test_clients_cannot_forge_or_move_router_interfaces(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await create_external_network(cloud)
            network, subnet = await cloud.network_with_subnet()
            theirs = await cloud.create("router", "other")
            for owner in ("network:router_interface", "network:router_gateway", "network:floatingip"):
                fake = {"network_id": network["id"], "device_id": theirs["id"], "device_owner": owner}
                assert (await cloud.refused("POST", "/ports", {"port": fake}))[0] == 403
            port = await cloud.create("port", network_id=network["id"], device_owner="network:own")
            change = {"port": {"device_owner": "network:router_interface", "device_id": theirs["id"]}}
            assert (await cloud.refused("PUT", f"/ports/{port['id']}", change))[0] == 403
            shared = await cloud.create("network", "admin", shared=True)
            claim = {"port": {"network_id": shared["id"], "device_owner": "network:dhcp"}}
            assert (await cloud.refused("POST", "/ports", claim))[0] == 403
            router = await cloud.create("router")
            path = f"/routers/{router['id']}/add_router_interface"
            joined = await cloud.ok("PUT", path, {"subnet_id": subnet["id"]})
            divert = await cloud.refused("PUT", f"/ports/{joined['port_id']}", {"port": {"device_id": theirs["id"]}})
            assert divert == (409, "ServicePortInUse")
            outside = (await cloud.show("network", public["id"], "admin"))["subnets"][0]
            assert (await cloud.refused("PUT", path, {"subnet_id": outside}))[0] == 403

    asyncio.run(scenario())
