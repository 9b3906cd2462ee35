"""Routers, floating addresses and the network that a project gets by itself."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.network.seed import seed
from tests.network.support import Net, net
from tests.support.cloud import ADMIN, DEMO


async def external(cloud: Net, cidr: str = "192.0.2.0/28") -> dict[str, Any]:
    network = await cloud.make("network", "admin", name="public", **{"router:external": True})
    await cloud.make("subnet", "admin", network_id=network["id"], ip_version=4, cidr=cidr, enable_dhcp=False)
    return network


def test_a_router_connects_subnets_and_an_external_network(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await external(cloud)
            network, subnet = await cloud.network_with_subnet()
            router = await cloud.make("router", name="r", external_gateway_info={"network_id": public["id"]})
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
            changed = await cloud.change(
                "router", router, routes=[{"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}], admin_state_up=False
            )
            assert (len(changed["routes"]), changed["admin_state_up"]) == (1, False)
            assert changed["external_gateway_info"] == info
            assert (await cloud.change("router", router, external_gateway_info=None))["external_gateway_info"] is None
            needed = await cloud.refused("PUT", f"{path}/remove_router_interface", {"subnet_id": subnet["id"]})
            assert needed == (409, "RouterInterfaceInUseByRoute")
            assert (await cloud.change("router", router, routes=None))["routes"] == []
            left = await cloud.ok("PUT", f"{path}/remove_router_interface", {"subnet_id": subnet["id"]})
            assert left["port_id"] == port["id"]
            again = await cloud.refused("PUT", f"{path}/remove_router_interface", {"subnet_id": subnet["id"]})
            assert again == (404, "RouterInterfaceNotFoundForSubnet")
            await cloud.ok("DELETE", path)
            assert await cloud.refused("GET", path) == (404, "RouterNotFound")
            assert await cloud.listed("port", as_="admin") == []

    asyncio.run(scenario())


def test_routes_are_added_and_taken_away(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await external(cloud)
            _, subnet = await cloud.network_with_subnet()
            router = await cloud.make("router", external_gateway_info={"network_id": public["id"]})
            path = f"/routers/{router['id']}"
            await cloud.ok("PUT", f"{path}/add_router_interface", {"subnet_id": subnet["id"]})
            one = {"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}
            two = {"destination": "10.9.0.0/16", "nexthop": "10.1.0.10"}
            out = {"destination": "10.8.0.0/16", "nexthop": "192.0.2.9"}
            said = await cloud.ok("PUT", f"{path}/add_extraroutes", {"router": {"routes": [one, out]}})
            assert said["router"]["routes"] == [one, out]
            said = await cloud.ok("PUT", f"{path}/add_extraroutes", {"router": {"routes": [two, one]}})
            assert said["router"]["routes"] == [one, out, two]
            gone = {"destination": "10.9.9.0/24", "nexthop": "10.1.0.9"}
            said = await cloud.ok("PUT", f"{path}/remove_extraroutes", {"router": {"routes": [one, gone]}})
            assert said["router"]["routes"] == [out, two]
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


def test_an_interface_by_port(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network, _ = await cloud.network_with_subnet()
            port = await cloud.make("port", network_id=network["id"])
            router = await cloud.make("router")
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


def test_routers_of_others(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            router = await cloud.make("router", "other", name="theirs")
            assert await cloud.listed("router") == []
            for method, json in (("GET", None), ("PUT", {"router": {"name": "x"}}), ("DELETE", None)):
                assert await cloud.refused(method, f"/routers/{router['id']}", json) == (404, "RouterNotFound")
            assert (await cloud.refused("POST", "/routers", {"router": {"ha": True}}))[0] == 400
            inside, _ = await cloud.network_with_subnet()
            body = {"router": {"external_gateway_info": {"network_id": inside["id"]}}}
            assert (await cloud.refused("POST", "/routers", body))[0] == 400
            assert await cloud.listed("router", as_="member") == []

    asyncio.run(scenario())


def test_nobody_fakes_or_diverts_an_interface(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await external(cloud)
            network, subnet = await cloud.network_with_subnet()
            theirs = await cloud.make("router", "other")
            for owner in ("network:router_interface", "network:router_gateway", "network:floatingip"):
                fake = {"network_id": network["id"], "device_id": theirs["id"], "device_owner": owner}
                assert (await cloud.refused("POST", "/ports", {"port": fake}))[0] == 403
            port = await cloud.make("port", network_id=network["id"], device_owner="network:own")
            change = {"port": {"device_owner": "network:router_interface", "device_id": theirs["id"]}}
            assert (await cloud.refused("PUT", f"/ports/{port['id']}", change))[0] == 403
            shared = await cloud.make("network", "admin", shared=True)
            claim = {"port": {"network_id": shared["id"], "device_owner": "network:dhcp"}}
            assert (await cloud.refused("POST", "/ports", claim))[0] == 403
            router = await cloud.make("router")
            path = f"/routers/{router['id']}/add_router_interface"
            joined = await cloud.ok("PUT", path, {"subnet_id": subnet["id"]})
            divert = await cloud.refused("PUT", f"/ports/{joined['port_id']}", {"port": {"device_id": theirs["id"]}})
            assert divert == (409, "ServicePortInUse")
            outside = (await cloud.show("network", public["id"], "admin"))["subnets"][0]
            assert (await cloud.refused("PUT", path, {"subnet_id": outside}))[0] == 403

    asyncio.run(scenario())


def test_a_floating_address_leads_to_a_port(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await external(cloud)
            network, subnet = await cloud.network_with_subnet()
            port = await cloud.make("port", network_id=network["id"])
            floating = await cloud.make("floatingip", floating_network_id=public["id"], description="web")
            assert (floating["status"], floating["port_id"]) == ("DOWN", None)
            path = f"/floatingips/{floating['id']}"
            leads = {"floatingip": {"port_id": port["id"]}}
            assert await cloud.refused("PUT", path, leads) == (404, "ExternalGatewayForFloatingIPNotFound")
            router = await cloud.make("router", external_gateway_info={"network_id": public["id"]})
            interface = {"subnet_id": subnet["id"]}
            await cloud.ok("PUT", f"/routers/{router['id']}/add_router_interface", interface)
            led = await cloud.change("floatingip", floating, port_id=port["id"])
            assert (led["status"], led["fixed_ip_address"], led["router_id"]) == ("ACTIVE", "10.1.0.2", router["id"])
            assert (led["floating_ip_address"], led["description"]) == (floating["floating_ip_address"], "web")
            assert [item["id"] for item in await cloud.listed("floatingip", {"port_id": port["id"]})] == [led["id"]]
            second = {"floatingip": {"floating_network_id": public["id"], "port_id": port["id"]}}
            assert await cloud.refused("POST", "/floatingips", second) == (409, "FloatingIPPortAlreadyAssociated")
            stuck = await cloud.refused("PUT", f"/routers/{router['id']}/remove_router_interface", interface)
            assert stuck == (409, "RouterInterfaceInUseByFloatingIP")
            gateway = await cloud.refused("PUT", f"/routers/{router['id']}", {"router": {"external_gateway_info": {}}})
            assert gateway == (409, "RouterExternalGatewayInUseByFloatingIp")
            assert (await cloud.change("floatingip", floating, port_id=None))["status"] == "DOWN"
            await cloud.change("floatingip", floating, port_id=port["id"], fixed_ip_address="10.1.0.2")
            await cloud.ok("DELETE", f"/ports/{port['id']}")
            loose = await cloud.show("floatingip", floating["id"])
            assert (loose["port_id"], loose["status"], loose["router_id"]) == (None, "DOWN", None)
            await cloud.ok("DELETE", path)
            assert await cloud.refused("GET", path) == (404, "FloatingIPNotFound")

    asyncio.run(scenario())


def test_an_external_network_takes_its_idle_floating_addresses_along(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public, other = await external(cloud), await external(cloud, "198.51.100.0/24")
            floating = [await cloud.make("floatingip", floating_network_id=public["id"]) for _ in range(2)]
            kept = await cloud.make("floatingip", floating_network_id=other["id"])
            path = f"/networks/{public['id']}"
            router = await cloud.make("router", external_gateway_info={"network_id": public["id"]})
            assert await cloud.refused("DELETE", path, as_="admin") == (409, "NetworkInUse")
            assert len(await cloud.listed("floatingip")) == 3
            await cloud.ok("DELETE", f"/routers/{router['id']}")
            await cloud.ok("DELETE", path, as_="admin")
            assert await cloud.listed("floatingip") == [kept]
            gone = await cloud.refused("GET", f"/floatingips/{floating[0]['id']}")
            assert gone == (404, "FloatingIPNotFound")
            assert await cloud.listed("port", {"network_id": public["id"]}, "admin") == []

    asyncio.run(scenario())


def test_floating_addresses_run_out_and_belong_to_somebody(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            public = await external(cloud, "192.0.2.0/29")
            body = {"floatingip": {"floating_network_id": public["id"]}}
            made = [await cloud.make("floatingip", **body["floatingip"]) for _ in range(5)]
            assert len({floating["floating_ip_address"] for floating in made}) == 5
            assert await cloud.refused("POST", "/floatingips", body) == (409, "IpAddressGenerationFailure")
            assert (await cloud.refused("GET", f"/floatingips/{made[0]['id']}", as_="other"))[0] == 404
            await cloud.ok("DELETE", f"/floatingips/{made[3]['id']}")
            address = made[3]["floating_ip_address"]
            chosen = {"floatingip": {**body["floatingip"], "floating_ip_address": address}}
            assert (await cloud.refused("POST", "/floatingips", chosen))[0] == 403
            assert (await cloud.make("floatingip", "admin", **chosen["floatingip"]))["floating_ip_address"] == address
            inside, _ = await cloud.network_with_subnet()
            wrong = {"floatingip": {"floating_network_id": inside["id"]}}
            assert await cloud.refused("POST", "/floatingips", wrong) == (400, "BadRequest")

    asyncio.run(scenario())


def test_a_project_without_a_network_gets_one(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await external(cloud)
            path = f"/auto-allocated-topology/{DEMO}"
            dry = await cloud.ok("GET", f"{path}?fields=dry-run")
            assert dry["auto_allocated_topology"]["id"] == "dry-run=pass"
            assert await cloud.names("network") == ["public"]
            answers = await asyncio.gather(*(cloud.ok("GET", path) for _ in range(4)))
            (network_id,) = {answer["auto_allocated_topology"]["id"] for answer in answers}
            network = await cloud.show("network", network_id)
            assert (network["name"], network["project_id"]) == ("auto_allocated_network", DEMO)
            assert await cloud.names("router") == ["auto_allocated_router"]
            port = await cloud.make("port", network_id=network_id)
            assert port["fixed_ips"][0]["ip_address"] == "10.64.0.2"
            assert (await cloud.refused("GET", path, as_="other"))[0] == 403
            assert await cloud.refused("DELETE", path) == (409, "NetworkInUse")
            await cloud.ok("DELETE", f"/ports/{port['id']}")
            await cloud.ok("DELETE", path)
            assert (await cloud.names("network"), await cloud.names("router")) == (["public"], [])
            assert (await cloud.refused("DELETE", path))[0] == 404

    asyncio.run(scenario())


def test_the_seed_is_made_once_and_works(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            network_id = await seed(cloud.db, ADMIN)
            assert await seed(cloud.db, ADMIN) == network_id
            assert sorted(await cloud.names("network")) == ["private", "public"]
            port = await cloud.make("port", network_id=network_id)
            assert port["fixed_ips"][0]["ip_address"] == "10.0.0.2"
            (public,) = await cloud.listed("network", {"router:external": "True"})
            floating = await cloud.make("floatingip", floating_network_id=public["id"], port_id=port["id"])
            assert floating["status"] == "ACTIVE"
            assert floating["floating_ip_address"].startswith("192.0.2.")

    asyncio.run(scenario())
