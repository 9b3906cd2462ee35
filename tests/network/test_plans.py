"""What hosts are told of networks, from what people did with the network API."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova.hosts.messages import ApplyNetwork, Command, HostFacts, Inventory, NetworkPlan, WiredNetwork, WiredPort
from kilonova.hosts.registry import register
from kilonova.hosts.transport import HostUnreachable
from kilonova.network.plans import compute, networked_hosts
from kilonova.network.pushing import Pusher
from tests.network.support import Net, net
from tests.support import run


async def _hosts(cloud: Net, *names: str) -> None:
    told = [_facts(name, f"192.0.2.{number}", networked=True) for number, name in enumerate(names, start=1)]
    await register(cloud.services.db, [*told, _facts("simulated", "192.0.2.99")])


def _facts(name: str, address: str, *, networked: bool = False) -> HostFacts:
    return HostFacts(
        host=name,
        hypervisor_hostname=name,
        hypervisor_type="QEMU",
        hypervisor_version=7002000,
        host_ip=address,
        inventory={"VCPU": Inventory(total=4, max_unit=4)},
        networked=networked,
    )


async def _plans(cloud: Net) -> dict[str, NetworkPlan]:
    return await compute(cloud.services.db, await networked_hosts(cloud.services.db))


async def _bound(cloud: Net, network: dict[str, Any], host: str, **said: Any) -> dict[str, Any]:
    made = await cloud.make("port", network_id=network["id"], **said)
    changes = {"binding:host_id": host, "device_id": f"guest of {made['id']}", "device_owner": "compute:nova"}
    return await cloud.change("port", made, as_="admin", **changes)


def _network(plan: NetworkPlan, network: dict[str, Any]) -> WiredNetwork:
    (found,) = [one for one in plan.networks if one.id == network["id"]]
    return found


def _port(plan: NetworkPlan, port: dict[str, Any]) -> WiredPort:
    (found,) = [one for network in plan.networks for one in network.ports if one.id == port["id"]]
    return found


def test_a_host_has_the_networks_of_its_ports_and_knows_its_peers(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one", "two", "three")
            network, subnet = await cloud.network_with_subnet(
                dns_nameservers=["9.9.9.9"], host_routes=[{"destination": "10.7.0.0/16", "nexthop": "10.1.0.9"}]
            )
            other, _ = await cloud.network_with_subnet("10.2.0.0/24", gateway_ip=None, enable_dhcp=False)
            a = await _bound(cloud, network, "one")
            await _bound(cloud, network, "two")
            await _bound(cloud, network, "simulated")
            await _bound(cloud, other, "two")
            await cloud.make("port", network_id=other["id"])
            plans = await _plans(cloud)
            assert set(plans) == {"one", "two", "three"}
            assert [len(plans[name].networks) for name in ("one", "two", "three")] == [1, 2, 0]
            found = _network(plans["one"], network)
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
            port = _port(plans["one"], a)
            assert (port.mac, port.addresses) == (a["mac_address"], [a["fixed_ips"][0]["ip_address"]])
            assert (port.guest_id, port.is_up, port.secured) == (f"guest of {a['id']}", True, True)
            (wired,) = _network(plans["two"], other).subnets
            assert (wired.gateway, wired.held, wired.dhcp) == ("", [], False)
            assert _network(plans["two"], other).peers == []

    run(scenario())


def test_a_port_that_is_about_to_move_is_on_both_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one", "two")
            network, _ = await cloud.network_with_subnet()
            a = await _bound(cloud, network, "one")
            await cloud.ok("POST", f"/ports/{a['id']}/bindings", {"binding": {"host": "two"}}, "admin")
            plans = await _plans(cloud)
            assert _port(plans["one"], a) == _port(plans["two"], a)
            assert _network(plans["two"], network).peers == ["192.0.2.1"]
            await cloud.ok("PUT", f"/ports/{a['id']}/bindings/two/activate", as_="admin")
            await cloud.ok("DELETE", f"/ports/{a['id']}/bindings/one", as_="admin")
            plans = await _plans(cloud)
            assert plans["one"].networks == []
            assert _port(plans["two"], a).id == a["id"]

    run(scenario())


def test_rules_name_the_addresses_of_groups(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one", "two")
            network, _ = await cloud.network_with_subnet()
            web = await cloud.make("security_group", name="web")
            people = await cloud.make("security_group", name="people")
            rule: dict[str, Any] = {"security_group_id": web["id"], "direction": "ingress", "ethertype": "IPv4"}
            await cloud.make(
                "security_group_rule",
                **rule,
                protocol="tcp",
                port_range_min=80,
                port_range_max=81,
                remote_group_id=people["id"],
            )
            await cloud.make("security_group_rule", **rule, protocol="icmp", remote_ip_prefix="10.0.0.7/8")
            a = await _bound(cloud, network, "one", security_groups=[web["id"]])

            plan = (await _plans(cloud))["one"]
            rules = _port(plan, a).rules
            ingress = [(r.protocol, r.port_min, r.remotes, r.group) for r in rules if r.direction == "ingress"]
            assert sorted(ingress) == [("1", None, ["10.0.0.0/8"], ""), ("6", 80, [], people["id"])]
            assert plan.groups == {people["id"]: []}
            pairs = [{"ip_address": "10.5.0.0/24"}]
            member = await cloud.make(
                "port", network_id=network["id"], security_groups=[people["id"]], allowed_address_pairs=pairs
            )
            address = f"{member['fixed_ips'][0]['ip_address']}/32"
            plans = await _plans(cloud)
            assert plans["one"].groups == {people["id"]: [address, "10.5.0.0/24"]}
            assert plans["two"].groups == {}
            assert sorted(r.ethertype for r in rules if r.direction == "egress") == ["IPv4", "IPv6"]

    run(scenario())


def test_rules_of_stateless_groups_say_so(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one")
            network, _ = await cloud.network_with_subnet()
            plain = await cloud.make("security_group", name="plain")
            quick = await cloud.make("security_group", name="quick", stateful=False)
            rule = {"security_group_id": quick["id"], "direction": "ingress", "ethertype": "IPv4"}
            await cloud.make("security_group_rule", **rule)
            port = await _bound(cloud, network, "one", security_groups=[plain["id"], quick["id"]])

            async def rules() -> list[tuple[str, str, bool]]:
                found = _port((await _plans(cloud))["one"], port).rules
                return sorted((rule.direction, rule.ethertype, rule.stateful) for rule in found)

            outward = [("egress", "IPv4", True), ("egress", "IPv6", True)]
            quickly = [("egress", "IPv4", False), ("egress", "IPv6", False), ("ingress", "IPv4", False)]
            assert await rules() == sorted([*outward, *quickly])
            await cloud.change("security_group", quick, stateful=True)
            assert await rules() == [*outward, ("ingress", "IPv4", True)]

    run(scenario())


def test_what_a_port_may_beyond_its_addresses(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one")
            network, _ = await cloud.network_with_subnet()
            a = await _bound(
                cloud,
                network,
                "one",
                allowed_address_pairs=[{"ip_address": "10.1.0.200", "mac_address": "FA-16-3E-00-00-99"}],
                extra_dhcp_opts=[
                    {"opt_name": "mtu", "opt_value": "1300"},
                    {"opt_name": "dns-server", "opt_value": "::1", "ip_version": 6},
                ],
            )
            port = _port((await _plans(cloud))["one"], a)
            assert port.pairs == [("fa:16:3e:00:00:99", "10.1.0.200/32")]
            assert port.dhcp_options == {"mtu": "1300"}
            await cloud.change("port", a, allowed_address_pairs=[])
            await cloud.change("port", a, security_groups=[], port_security_enabled=False, admin_state_up=False)
            port = _port((await _plans(cloud))["one"], a)
            assert (port.secured, port.is_up, port.rules) == (False, False, [])

    run(scenario())


def test_routers_lead_outside_and_join_networks(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one", "two")
            external = await cloud.make("network", "admin", name="public", **{"router:external": True})
            await cloud.make("subnet", "admin", network_id=external["id"], ip_version=4, cidr="203.0.113.0/24")
            network, subnet = await cloud.network_with_subnet()
            other, other_subnet = await cloud.network_with_subnet("10.2.0.0/24")
            a, b = await _bound(cloud, network, "one"), await _bound(cloud, other, "two")
            router = await cloud.make("router", name="r")
            for one in (subnet, other_subnet):
                await cloud.ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": one["id"]})
            plans = await _plans(cloud)
            assert {one.id for one in plans["one"].networks} == {network["id"], other["id"]}
            here, joined = _network(plans["one"], network), _network(plans["one"], other)
            assert here.routed == [("10.2.0.0/24", other["id"])]
            assert joined.routed == [("10.1.0.0/24", network["id"])]
            assert joined.ports == []
            assert joined.neighbours == [(b["mac_address"], b["fixed_ips"][0]["ip_address"])]
            assert joined.peers == ["192.0.2.2"]
            assert here.peers == ["192.0.2.2"]
            assert not here.nat

            await cloud.change("router", router, external_gateway_info={"network_id": external["id"]})
            floating = await cloud.make("floatingip", floating_network_id=external["id"], port_id=a["id"])
            plans = await _plans(cloud)
            here = _network(plans["one"], network)
            assert here.nat
            assert here.floating == [(floating["floating_ip_address"], a["fixed_ips"][0]["ip_address"])]
            assert _network(plans["two"], network).floating == []
            await cloud.change("router", router, "admin", admin_state_up=False)
            plans = await _plans(cloud)
            assert [one.id for one in plans["one"].networks] == [network["id"]]
            assert not _network(plans["one"], network).nat

    run(scenario())


def test_routes_of_routers_name_the_network_of_their_next_hop(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one", "two")
            external = await cloud.make("network", "admin", name="public", **{"router:external": True})
            await cloud.make("subnet", "admin", network_id=external["id"], ip_version=4, cidr="203.0.113.0/24")
            network, subnet = await cloud.network_with_subnet()
            other, other_subnet = await cloud.network_with_subnet("10.2.0.0/24")
            await _bound(cloud, network, "one")
            b = await _bound(cloud, network, "two")
            router = await cloud.make("router", external_gateway_info={"network_id": external["id"]})
            path = f"/routers/{router['id']}"
            await cloud.ok("PUT", f"{path}/add_router_interface", {"subnet_id": subnet["id"]})
            near = {"destination": "10.7.1.1/16", "nexthop": "10.1.0.9"}
            await cloud.change("router", router, routes=[near])
            here = _network((await _plans(cloud))["one"], network)
            assert here.routes == [("10.7.0.0/16", "10.1.0.9", network["id"])]
            # A next hop may be on another host, where nobody could be asked for it.
            assert here.neighbours == [(b["mac_address"], b["fixed_ips"][0]["ip_address"])]
            await cloud.ok("PUT", f"{path}/add_router_interface", {"subnet_id": other_subnet["id"]})
            far = {"destination": "0.0.0.0/0", "nexthop": "10.2.0.9"}
            nowhere = [
                # By the host's own ways, to where the router is connected anyway, and to what every link has.
                {"destination": "10.8.0.0/16", "nexthop": "203.0.113.9"},
                {"destination": "10.2.0.0/24", "nexthop": "10.1.0.9"},
                {"destination": "169.254.64.0/31", "nexthop": "10.1.0.9"},
            ]
            await cloud.change("router", router, routes=[near, far, *nowhere])
            plan = (await _plans(cloud))["one"]
            for one in (network, other):
                assert _network(plan, one).routes == [
                    ("0.0.0.0/0", "10.2.0.9", other["id"]),
                    ("10.7.0.0/16", "10.1.0.9", network["id"]),
                ]
            await cloud.change("router", router, admin_state_up=False)
            assert _network((await _plans(cloud))["one"], network).routes == []

    run(scenario())


def test_a_shared_network_is_led_by_its_own_routers(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one")
            shared = await cloud.make("network", "admin", name="shared", shared=True)
            subnet = await cloud.make("subnet", "admin", network_id=shared["id"], ip_version=4, cidr="10.1.0.0/24")
            own, own_subnet = await cloud.network_with_subnet("8.8.8.0/24")
            await _bound(cloud, shared, "one")
            await _bound(cloud, own, "one")
            # Somebody who may use the network must not turn the packets of all others.
            router = await cloud.make("router")
            door = await cloud.make("port", network_id=shared["id"])
            interface = f"/routers/{router['id']}/add_router_interface"
            await cloud.ok("PUT", interface, {"port_id": door["id"]})
            await cloud.ok("PUT", interface, {"subnet_id": own_subnet["id"]})
            await cloud.change("router", router, routes=[{"destination": "9.9.9.9/32", "nexthop": "10.1.0.200"}])
            plan = (await _plans(cloud))["one"]
            assert [(one.routed, one.routes) for one in plan.networks] == [([], []), ([], [])]
            owners = await cloud.make("router", "admin")
            await cloud.ok("PUT", f"/routers/{owners['id']}/add_router_interface", {"subnet_id": subnet["id"]}, "admin")
            await cloud.change(
                "router", owners, "admin", routes=[{"destination": "10.9.0.0/16", "nexthop": "10.1.0.200"}]
            )
            plan = (await _plans(cloud))["one"]
            assert _network(plan, shared).routes == [("10.9.0.0/16", "10.1.0.200", shared["id"])]

    run(scenario())


def test_a_guest_may_be_the_gateway(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await _hosts(cloud, "one")
            network, subnet = await cloud.network_with_subnet()
            fixed_ips = [{"subnet_id": subnet["id"], "ip_address": "10.1.0.1"}]
            await _bound(cloud, network, "one", fixed_ips=fixed_ips)
            (wired,) = _network((await _plans(cloud))["one"], network).subnets
            assert (wired.gateway, wired.held) == ("10.1.0.1", [])

    run(scenario())


class _Hosts:
    """A transport to hosts that take what they are told, unless they are away."""

    def __init__(self) -> None:
        self.told: list[tuple[str, NetworkPlan]] = []
        self.away: set[str] = set()

    async def call(self, host: str, command: Command, *, timeout: float | None = None) -> None:
        if host in self.away:
            raise HostUnreachable(host, "away")
        assert isinstance(command.verb, ApplyNetwork)
        self.told.append((host, command.verb.plan))

    async def hears(self, count: int) -> list[tuple[str, NetworkPlan]]:
        async with asyncio.timeout(60):
            while len(self.told) < count:
                await asyncio.sleep(0.01)
        heard, self.told = self.told, []
        return heard


def test_hosts_are_told_when_something_changes_for_them(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            hosts = _Hosts()
            telling = Pusher(cloud.services.db, hosts)
            pusher = asyncio.create_task(telling.run())
            network, _ = await cloud.network_with_subnet()
            # If it looked for hosts only after they joined, it would hear of them twice, and tell them twice.
            async with asyncio.timeout(60):
                while telling._look_for_hosts:
                    await asyncio.sleep(0.01)
            assert hosts.told == []
            await _hosts(cloud, "one", "two")
            assert {host for host, _ in await hosts.hears(2)} == {"one", "two"}
            a = await _bound(cloud, network, "one")
            ((host, plan),) = await hosts.hears(1)
            assert (host, _port(plan, a).id) == ("one", a["id"])
            # What concerns nobody is told to nobody, and every change of what does is.
            await cloud.make("port", network_id=network["id"], security_groups=[])
            rule = {"security_group_id": a["security_groups"][0], "direction": "ingress", "protocol": "tcp"}
            await cloud.make("security_group_rule", **rule)
            ((host, changed),) = await hosts.hears(1)
            assert host == "one"
            assert changed.read_at > plan.read_at
            assert len(_port(changed, a).rules) == 1 + len(_port(plan, a).rules)
            await cloud.ok("DELETE", f"/ports/{a['id']}")
            ((host, plan),) = await hosts.hears(1)
            assert plan.networks == []
            pusher.cancel()

    run(scenario())


def test_a_host_that_was_away_is_told_again(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with net(sqlite_url) as cloud:
            hosts = _Hosts()
            hosts.away.add("one")
            pusher = asyncio.create_task(Pusher(cloud.services.db, hosts, again_every=0.2).run())
            await _hosts(cloud, "one")
            await asyncio.sleep(0.3)
            hosts.away.clear()
            ((host, _),) = (await hosts.hears(1))[:1]
            assert host == "one"
            # And from time to time in any case.
            await hosts.hears(2)
            pusher.cancel()

    run(scenario())
