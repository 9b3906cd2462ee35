"""Trunks: a port that carries the traffic of subports, each with a VLAN id."""

from __future__ import annotations

from typing import Any

from kilonova.hosts.networked import networked_hosts
from kilonova.network.host_plans import compute_plans
from tests.network.support import Net, net, planned_port, register_hosts
from tests.support import run


async def create_trunk(cloud: Net, *vlans: int, **attributes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A trunk and its ports, the parent first."""
    network, _ = await cloud.network_with_subnet()
    other, _ = await cloud.network_with_subnet("10.2.0.0/24")
    parent = await cloud.create("port", network_id=network["id"])
    ports = [await cloud.create("port", network_id=other["id"]) for _ in vlans]
    subports = [subport(port, vlan) for port, vlan in zip(ports, vlans, strict=True)]
    trunk = await cloud.create("trunk", port_id=parent["id"], sub_ports=subports, **attributes)
    return trunk, [parent, *ports]


def subport(port: dict[str, Any], vlan: int) -> dict[str, Any]:
    return {"port_id": port["id"], "segmentation_type": "vlan", "segmentation_id": vlan}


def test_trunk_has_subports(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            trunk, (parent, one, two) = await create_trunk(cloud, 42, 7, name="t", description="d")
            assert trunk["sub_ports"] == [subport(two, 7), subport(one, 42)]
            expected = {"name": "t", "description": "d", "port_id": parent["id"], "admin_state_up": True}
            assert {key: trunk[key] for key in expected} == expected
            assert (trunk["status"], trunk["tags"], trunk["revision_number"]) == ("DOWN", [], 1)
            path = f"/trunks/{trunk['id']}"
            assert await cloud.show("trunk", trunk["id"]) == trunk
            assert await cloud.ok("GET", f"{path}/get_subports") == {"sub_ports": trunk["sub_ports"]}
            for port in (one, two):
                assert (await cloud.show("port", port["id"]))["device_owner"] == "trunk:subport"
            details = (await cloud.show("port", parent["id"]))["trunk_details"]
            shown = [
                {**subport(port, vlan), "mac_address": port["mac_address"]} for port, vlan in ((two, 7), (one, 42))
            ]
            assert details == {"trunk_id": trunk["id"], "sub_ports": shown}
            assert "trunk_details" not in await cloud.show("port", one["id"])
            left = await cloud.ok("PUT", f"{path}/remove_subports", {"sub_ports": [{"port_id": one["id"]}]})
            assert left["sub_ports"] == [subport(two, 7)]
            assert (await cloud.show("port", one["id"]))["device_owner"] == ""
            added = await cloud.ok("PUT", f"{path}/add_subports", {"sub_ports": [subport(one, 8)]})
            assert added["sub_ports"] == [subport(two, 7), subport(one, 8)]
            assert added["revision_number"] == 3
            changed = await cloud.update("trunk", trunk, name="u", admin_state_up=False)
            assert (changed["name"], changed["admin_state_up"]) == ("u", False)
            for verb, body in (("add", subport(one, 9)), ("remove", {"port_id": one["id"]})):
                refused = await cloud.refused("PUT", f"{path}/{verb}_subports", {"sub_ports": [body]})
                assert refused == (409, "TrunkDisabled")
            await cloud.ok("DELETE", path)
            assert await cloud.refused("GET", path) == (404, "TrunkNotFound")
            for port in (one, two, parent):
                assert (await cloud.show("port", port["id"]))["device_owner"] == ""
                await cloud.ok("DELETE", f"/ports/{port['id']}")

    run(scenario())


def test_lists(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            trunk, (parent, *_) = await create_trunk(cloud, 1, name="t")
            await create_trunk(cloud, name="u", admin_state_up=False)
            assert await cloud.names("trunk", {"sort_key": "name"}) == ["t", "u"]
            assert await cloud.names("trunk", {"port_id": parent["id"]}) == ["t"]
            assert await cloud.names("trunk", {"admin_state_up": "false"}) == ["u"]
            assert await cloud.names("trunk", {"status": "DOWN", "name": "t"}) == ["t"]
            assert await cloud.names("trunk", {"status": "ACTIVE"}) == []
            assert await cloud.names("trunk", as_="other") == []
            assert await cloud.refused("GET", f"/trunks/{trunk['id']}", as_="other") == (404, "TrunkNotFound")
            await cloud.ok("PUT", f"/trunks/{trunk['id']}/tags", {"tags": ["a"]})
            assert await cloud.names("trunk", {"tags": "a"}) == ["t"]

    run(scenario())


def test_port_is_in_one_trunk_only(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            trunk, (parent, one) = await create_trunk(cloud, 7)
            free = await cloud.create("port", network_id=parent["network_id"])
            for port, kind in ((parent, "PortInUseAsTrunkParent"), (one, "PortInUseAsSubPort")):
                assert await cloud.refused("POST", "/trunks", {"trunk": {"port_id": port["id"]}}) == (409, kind)
                body = {"sub_ports": [subport(port, 9)]}
                assert await cloud.refused("PUT", f"/trunks/{trunk['id']}/add_subports", body) == (409, kind)
                assert await cloud.refused("DELETE", f"/ports/{port['id']}") == (409, kind)
            same = {"sub_ports": [subport(free, 7)]}
            refused = await cloud.refused("PUT", f"/trunks/{trunk['id']}/add_subports", same)
            assert refused == (409, "DuplicateSubPort")
            assert (await cloud.show("port", free["id"]))["device_owner"] == ""
            twice = {"trunk": {"port_id": free["id"], "sub_ports": [subport(free, 1)]}}
            assert (await cloud.refused("POST", "/trunks", twice)) == (409, "PortInUseAsTrunkParent")
            attached = {"port": {"device_id": "guest"}}
            assert await cloud.refused("PUT", f"/ports/{one['id']}", attached) == (409, "PortInUseAsSubPort")
            await cloud.update("port", one, name="renamed")
            await cloud.update("port", free, device_id="guest")
            used = {"sub_ports": [subport(free, 9)]}
            assert await cloud.refused("PUT", f"/trunks/{trunk['id']}/add_subports", used) == (409, "PortInUse")
            missing = {"sub_ports": [{"port_id": free["id"]}]}
            refused = await cloud.refused("PUT", f"/trunks/{trunk['id']}/remove_subports", missing)
            assert refused == (404, "SubPortNotFound")
            for wrong in (0, 4095, "7", None):
                body = {"sub_ports": [{**subport(free, 1), "segmentation_id": wrong}]}
                assert (await cloud.refused("PUT", f"/trunks/{trunk['id']}/add_subports", body))[0] == 400
            theirs, _ = await cloud.network_with_subnet("10.3.0.0/24", as_="other")
            hidden = await cloud.create("port", "other", network_id=theirs["id"])
            assert (await cloud.refused("POST", "/trunks", {"trunk": {"port_id": hidden["id"]}}))[0] == 404
            foreign = {"sub_ports": [subport(hidden, 9)]}
            assert (await cloud.refused("PUT", f"/trunks/{trunk['id']}/add_subports", foreign))[0] == 404

    run(scenario())


def test_subports_follow_their_parent(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register_hosts(cloud, "one", "two")
            trunk, (parent, port) = await create_trunk(cloud, 7)
            bound = {"binding:host_id": "simulated", "device_id": "guest", "device_owner": "compute:nova"}
            await cloud.update("port", parent, as_="admin", **bound)
            shown = await cloud.show("port", port["id"], as_="admin")
            assert (shown["binding:host_id"], shown["status"], shown["device_id"]) == ("simulated", "ACTIVE", "")
            assert (await cloud.show("trunk", trunk["id"]))["status"] == "ACTIVE"
            assert await cloud.refused("DELETE", f"/trunks/{trunk['id']}") == (409, "TrunkInUse")
            late = await cloud.create("port", network_id=port["network_id"])
            await cloud.ok("PUT", f"/trunks/{trunk['id']}/add_subports", {"sub_ports": [subport(late, 9)]})
            assert (await cloud.show("port", late["id"], as_="admin"))["binding:host_id"] == "simulated"
            await cloud.ok("PUT", f"/trunks/{trunk['id']}/remove_subports", {"sub_ports": [{"port_id": late["id"]}]})
            shown = await cloud.show("port", late["id"], as_="admin")
            assert (shown["binding:host_id"], shown["status"]) == ("", "DOWN")
            free = await cloud.create("port", network_id=parent["network_id"])
            await cloud.update("port", free, as_="admin", **{"binding:host_id": "one"})
            refused = await cloud.refused("POST", "/trunks", {"trunk": {"port_id": free["id"]}})
            assert refused == (409, "ParentPortInUse")
            # A live migration binds the parent only.
            await cloud.update("port", parent, as_="admin", **{"binding:host_id": "one"})
            await cloud.ok("POST", f"/ports/{parent['id']}/bindings", {"binding": {"host": "two"}}, "admin")
            plans = await compute_plans(cloud.services.db, await networked_hosts(cloud.services.db))
            for host in ("one", "two"):
                wired = planned_port(plans[host], port)
                assert (wired.parent, wired.vlan, wired.guest_id) == (parent["id"], 7, "guest")
                assert (planned_port(plans[host], parent).parent, planned_port(plans[host], parent).vlan) == ("", 0)
            await cloud.ok("PUT", f"/ports/{parent['id']}/bindings/two/activate", as_="admin")
            assert (await cloud.show("port", port["id"], as_="admin"))["binding:host_id"] == "two"
            unbound = {"binding:host_id": "", "device_id": "", "device_owner": ""}
            await cloud.update("port", parent, as_="admin", **unbound)
            shown = await cloud.show("port", port["id"], as_="admin")
            assert (shown["binding:host_id"], shown["status"]) == ("", "DOWN")
            await cloud.ok("DELETE", f"/trunks/{trunk['id']}")

    run(scenario())
