"""The network plans of hosts."""

from __future__ import annotations

from typing import Any

from kilonova.hosts.messages import NetworkPlan, WiredNetwork
from kilonova.hosts.networked import networked_hosts
from kilonova.network.host_plans import compute_plans
from tests.network.support import (
    Net,
    create_bound_port,
    net,
    planned_port,
    register_hosts,
)
from tests.support import run


async def compute_all_plans(cloud: Net) -> dict[str, NetworkPlan]:
    return await compute_plans(cloud.services.db, await networked_hosts(cloud.services.db))


def planned_network(plan: NetworkPlan, network: dict[str, Any]) -> WiredNetwork:
    (found,) = [one for one in plan.networks if one.id == network["id"]]
    return found


def test_plan_has_networks_of_ports_and_their_peers(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one", "two", "three")
            network, subnet = await cloud.network_with_subnet(
                dns_nameservers=["9.9.9.9"], host_routes=[{"destination": "10.7.0.0/16", "nexthop": "10.1.0.9"}]
            )
            other, _ = await cloud.network_with_subnet("10.2.0.0/24", gateway_ip=None, enable_dhcp=False)
            a = await create_bound_port(cloud, network, "one")
            await create_bound_port(cloud, network, "two")
            await create_bound_port(cloud, network, "simulated")
            await create_bound_port(cloud, other, "two")
            await cloud.create("port", network_id=other["id"])
            plans = await compute_all_plans(cloud)
            assert set(plans) == {"one", "two", "three"}
            assert [len(plans[name].networks) for name in ("one", "two", "three")] == [1, 2, 0]
            found = planned_network(plans["one"], network)
            assert found.peers == ["192.0.2.2"]
            assert found.mtu == 1450
            shown = await cloud.show("network", network["id"], as_="admin")
            assert found.vni == shown["provider:segmentation_id"]
            assert not found.nat
            (wired,) = found.subnets
            assert (wired.cidr, wired.gateway, wired.held, wired.dhcp) == (
                "10.1.0.0/24",
                "10.1.0.1",
                ["10.1.0.1"],
                True,
            )
            assert (wired.id, wired.dns, wired.routes) == (subnet["id"], ["9.9.9.9"], [("10.7.0.0/16", "10.1.0.9")])
            port = planned_port(plans["one"], a)
            assert (port.mac, port.addresses) == (a["mac_address"], [a["fixed_ips"][0]["ip_address"]])
            assert (port.guest_id, port.is_up, port.secured) == (f"guest of {a['id']}", True, True)
            (wired,) = planned_network(plans["two"], other).subnets
            assert (wired.gateway, wired.held, wired.dhcp) == ("", [], False)
            assert planned_network(plans["two"], other).peers == []

    run(scenario())


def test_port_with_standby_binding_is_in_both_plans(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one", "two")
            network, _ = await cloud.network_with_subnet()
            a = await create_bound_port(cloud, network, "one")
            await cloud.ok("POST", f"/ports/{a['id']}/bindings", {"binding": {"host": "two"}}, "admin")
            plans = await compute_all_plans(cloud)
            assert planned_port(plans["one"], a) == planned_port(plans["two"], a)
            assert planned_network(plans["two"], network).peers == ["192.0.2.1"]
            await cloud.ok("PUT", f"/ports/{a['id']}/bindings/two/activate", as_="admin")
            await cloud.ok("DELETE", f"/ports/{a['id']}/bindings/one", as_="admin")
            plans = await compute_all_plans(cloud)
            assert plans["one"].networks == []
            assert planned_port(plans["two"], a).id == a["id"]

    run(scenario())


def test_firewall_rules_have_members_of_remote_groups(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one", "two")
            network, _ = await cloud.network_with_subnet()
            web = await cloud.create("security_group", name="web")
            people = await cloud.create("security_group", name="people")
            rule: dict[str, Any] = {"security_group_id": web["id"], "direction": "ingress", "ethertype": "IPv4"}
            await cloud.create(
                "security_group_rule",
                **rule,
                protocol="tcp",
                port_range_min=80,
                port_range_max=81,
                remote_group_id=people["id"],
            )
            await cloud.create("security_group_rule", **rule, protocol="icmp", remote_ip_prefix="10.0.0.7/8")
            a = await create_bound_port(cloud, network, "one", security_groups=[web["id"]])

            plan = (await compute_all_plans(cloud))["one"]
            rules = planned_port(plan, a).rules
            ingress = [(r.protocol, r.port_min, r.remotes, r.group) for r in rules if r.direction == "ingress"]
            assert sorted(ingress) == [("1", None, ["10.0.0.0/8"], ""), ("6", 80, [], people["id"])]
            assert plan.groups == {people["id"]: []}
            pairs = [{"ip_address": "10.5.0.0/24"}]
            member = await cloud.create(
                "port", network_id=network["id"], security_groups=[people["id"]], allowed_address_pairs=pairs
            )
            address = f"{member['fixed_ips'][0]['ip_address']}/32"
            plans = await compute_all_plans(cloud)
            assert plans["one"].groups == {people["id"]: [address, "10.5.0.0/24"]}
            assert plans["two"].groups == {}
            assert sorted(r.ethertype for r in rules if r.direction == "egress") == ["IPv4", "IPv6"]

    run(scenario())


def test_firewall_rules_of_stateless_groups_are_stateless(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one")
            network, _ = await cloud.network_with_subnet()
            plain = await cloud.create("security_group", name="plain")
            quick = await cloud.create("security_group", name="quick", stateful=False)
            rule = {"security_group_id": quick["id"], "direction": "ingress", "ethertype": "IPv4"}
            await cloud.create("security_group_rule", **rule)
            port = await create_bound_port(cloud, network, "one", security_groups=[plain["id"], quick["id"]])

            async def rules() -> list[tuple[str, str, bool]]:
                found = planned_port((await compute_all_plans(cloud))["one"], port).rules
                return sorted((rule.direction, rule.ethertype, rule.stateful) for rule in found)

            outward = [("egress", "IPv4", True), ("egress", "IPv6", True)]
            quickly = [("egress", "IPv4", False), ("egress", "IPv6", False), ("ingress", "IPv4", False)]
            assert await rules() == sorted([*outward, *quickly])
            await cloud.update("security_group", quick, stateful=True)
            assert await rules() == [*outward, ("ingress", "IPv4", True)]

    run(scenario())


def test_plan_has_address_pairs_dhcp_options_and_port_security(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one")
            network, _ = await cloud.network_with_subnet()
            a = await create_bound_port(
                cloud,
                network,
                "one",
                allowed_address_pairs=[{"ip_address": "10.1.0.200", "mac_address": "FA-16-3E-00-00-99"}],
                extra_dhcp_opts=[
                    {"opt_name": "mtu", "opt_value": "1300"},
                    {"opt_name": "dns-server", "opt_value": "::1", "ip_version": 6},
                ],
            )
            port = planned_port((await compute_all_plans(cloud))["one"], a)
            assert port.pairs == [("fa:16:3e:00:00:99", "10.1.0.200/32")]
            assert port.dhcp_options == {"mtu": "1300"}
            await cloud.update("port", a, allowed_address_pairs=[])
            await cloud.update("port", a, security_groups=[], port_security_enabled=False, admin_state_up=False)
            port = planned_port((await compute_all_plans(cloud))["one"], a)
            assert (port.secured, port.is_up, port.rules) == (False, False, [])

    run(scenario())


def test_plan_has_nat_floating_ips_and_routed_networks(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one", "two")
            external = await cloud.create("network", "admin", name="public", **{"router:external": True})
            await cloud.create("subnet", "admin", network_id=external["id"], ip_version=4, cidr="203.0.113.0/24")
            network, subnet = await cloud.network_with_subnet()
            other, other_subnet = await cloud.network_with_subnet("10.2.0.0/24")
            a, b = await create_bound_port(cloud, network, "one"), await create_bound_port(cloud, other, "two")
            router = await cloud.create("router", name="r")
            for one in (subnet, other_subnet):
                await cloud.ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": one["id"]})
            plans = await compute_all_plans(cloud)
            assert {one.id for one in plans["one"].networks} == {network["id"], other["id"]}
            here, joined = planned_network(plans["one"], network), planned_network(plans["one"], other)
            assert here.routed == [("10.2.0.0/24", other["id"])]
            assert joined.routed == [("10.1.0.0/24", network["id"])]
            assert joined.ports == []
            assert joined.neighbours == [(b["mac_address"], b["fixed_ips"][0]["ip_address"])]
            assert joined.peers == ["192.0.2.2"]
            assert here.peers == ["192.0.2.2"]
            assert not here.nat

            await cloud.update("router", router, external_gateway_info={"network_id": external["id"]})
            floating = await cloud.create("floatingip", floating_network_id=external["id"], port_id=a["id"])
            plans = await compute_all_plans(cloud)
            here = planned_network(plans["one"], network)
            assert here.nat
            assert here.floating == [(floating["floating_ip_address"], a["fixed_ips"][0]["ip_address"])]
            assert planned_network(plans["two"], network).floating == []
            await cloud.update("router", router, "admin", admin_state_up=False)
            plans = await compute_all_plans(cloud)
            assert [one.id for one in plans["one"].networks] == [network["id"]]
            assert not planned_network(plans["one"], network).nat

    run(scenario())


def test_static_routes_name_network_of_next_hop(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one", "two")
            external = await cloud.create("network", "admin", name="public", **{"router:external": True})
            await cloud.create("subnet", "admin", network_id=external["id"], ip_version=4, cidr="203.0.113.0/24")
            network, subnet = await cloud.network_with_subnet()
            other, other_subnet = await cloud.network_with_subnet("10.2.0.0/24")
            await create_bound_port(cloud, network, "one")
            b = await create_bound_port(cloud, network, "two")
            router = await cloud.create("router", external_gateway_info={"network_id": external["id"]})
            path = f"/routers/{router['id']}"
            await cloud.ok("PUT", f"{path}/add_router_interface", {"subnet_id": subnet["id"]})
            near = {"destination": "10.7.1.1/16", "nexthop": "10.1.0.9"}
            await cloud.update("router", router, routes=[near])
            here = planned_network((await compute_all_plans(cloud))["one"], network)
            assert here.routes == [("10.7.0.0/16", "10.1.0.9", network["id"])]
            # The next hop may be on another host, so the plan must have its address.
            assert here.neighbours == [(b["mac_address"], b["fixed_ips"][0]["ip_address"])]
            await cloud.ok("PUT", f"{path}/add_router_interface", {"subnet_id": other_subnet["id"]})
            far = {"destination": "0.0.0.0/0", "nexthop": "10.2.0.9"}
            nowhere = [
                # Left out: external next hops, connected subnets, and link-local destinations.
                {"destination": "10.8.0.0/16", "nexthop": "203.0.113.9"},
                {"destination": "10.2.0.0/24", "nexthop": "10.1.0.9"},
                {"destination": "169.254.64.0/31", "nexthop": "10.1.0.9"},
            ]
            await cloud.update("router", router, routes=[near, far, *nowhere])
            plan = (await compute_all_plans(cloud))["one"]
            for one in (network, other):
                assert planned_network(plan, one).routes == [
                    ("0.0.0.0/0", "10.2.0.9", other["id"]),
                    ("10.7.0.0/16", "10.1.0.9", network["id"]),
                ]
            await cloud.update("router", router, admin_state_up=False)
            assert planned_network((await compute_all_plans(cloud))["one"], network).routes == []

    run(scenario())


def test_shared_network_ignores_routers_of_other_projects(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one")
            shared = await cloud.create("network", "admin", name="shared", shared=True)
            subnet = await cloud.create("subnet", "admin", network_id=shared["id"], ip_version=4, cidr="10.1.0.0/24")
            own, own_subnet = await cloud.network_with_subnet("8.8.8.0/24")
            await create_bound_port(cloud, shared, "one")
            await create_bound_port(cloud, own, "one")
            # A user of the shared network must not divert the packets of other projects.
            router = await cloud.create("router")
            door = await cloud.create("port", network_id=shared["id"])
            interface = f"/routers/{router['id']}/add_router_interface"
            await cloud.ok("PUT", interface, {"port_id": door["id"]})
            await cloud.ok("PUT", interface, {"subnet_id": own_subnet["id"]})
            await cloud.update("router", router, routes=[{"destination": "9.9.9.9/32", "nexthop": "10.1.0.200"}])
            plan = (await compute_all_plans(cloud))["one"]
            assert [(one.routed, one.routes) for one in plan.networks] == [([], []), ([], [])]
            owners = await cloud.create("router", "admin")
            await cloud.ok("PUT", f"/routers/{owners['id']}/add_router_interface", {"subnet_id": subnet["id"]}, "admin")
            await cloud.update(
                "router", owners, "admin", routes=[{"destination": "10.9.0.0/16", "nexthop": "10.1.0.200"}]
            )
            plan = (await compute_all_plans(cloud))["one"]
            assert planned_network(plan, shared).routes == [("10.9.0.0/16", "10.1.0.200", shared["id"])]

    run(scenario())


def test_guest_can_be_gateway_of_subnet(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one")
            network, subnet = await cloud.network_with_subnet()
            fixed_ips = [{"subnet_id": subnet["id"], "ip_address": "10.1.0.1"}]
            await create_bound_port(cloud, network, "one", fixed_ips=fixed_ips)
            (wired,) = planned_network((await compute_all_plans(cloud))["one"], network).subnets
            assert (wired.gateway, wired.held) == ("10.1.0.1", [])

    run(scenario())


def test_hosts_answer_for_a_gateway_outside_its_subnet_unless_a_guest_has_it(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one")
            network, _ = await cloud.network_with_subnet("10.1.0.0/24", gateway_ip="10.2.0.9")
            body = {"network_id": network["id"], "ip_version": 4, "cidr": "10.2.0.0/24"}
            await cloud.create("subnet", **body)
            await create_bound_port(cloud, network, "one")

            async def held() -> dict[str, list[str]]:
                plan = (await compute_all_plans(cloud))["one"]
                return {wired.cidr: wired.held for wired in planned_network(plan, network).subnets}

            assert await held() == {"10.1.0.0/24": ["10.2.0.9"], "10.2.0.0/24": ["10.2.0.1"]}
            await create_bound_port(cloud, network, "one", fixed_ips=[{"ip_address": "10.2.0.9"}])
            assert await held() == {"10.1.0.0/24": [], "10.2.0.0/24": ["10.2.0.1"]}

    run(scenario())
