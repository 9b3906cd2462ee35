"""Resources that ports need of their host, such as bandwidth, are claimed with the server's own."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.operations import detach_interface
from kilonova.compute.operations.detach_interface import DetachInterface
from kilonova.ids import new_id
from kilonova.operations.row import OperationRow
from kilonova.placement.changes import mark_facts_changed
from kilonova.placement.names import ensure_rows
from tests.compute.operations.support import wait_until_finished
from tests.compute.servers.support import make_port
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.neutron import use_neutron

EGRESS = "NET_BW_EGR_KILOBIT_PER_SEC"
HOST = "OS-EXT-SRV-ATTR:host"


async def add_bandwidth(c: FullCloud, total: int = 1500) -> dict[str, str]:
    """Add a child provider with bandwidth to every host, as Neutron does. Returns the names of providers by uuid."""
    names = {}
    async with c.db.transaction() as tx:
        await ensure_rows(tx, "resource_classes", [EGRESS])
        await ensure_rows(tx, "traits", ["CUSTOM_PHYSNET_ONE"])
        for host in await tx.fetch("SELECT id, name FROM resource_providers"):
            uuid, name = new_id(), f"{host['name']}:br-ex"
            names[uuid] = name
            child: int = await tx.fetch_value(
                "INSERT INTO resource_providers (uuid, name, generation, parent_id, root_id, change, facts, created_at,"
                " updated_at) VALUES ($1, $2, 0, $3, $3, 0, 0, 1, 1) RETURNING id",
                *(uuid, name, host["id"]),
            )
            await tx.execute(
                "INSERT INTO inventories (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size,"
                " allocation_ratio) VALUES ($1, $2, $3, 0, 1, $3, 1, 1.0)",
                *(child, EGRESS, total),
            )
            sql = "INSERT INTO provider_traits (provider_id, trait) VALUES ($1, 'CUSTOM_PHYSNET_ONE')"
            await tx.execute(sql, child)
            await mark_facts_changed(tx, [child])
    return names


def groups_request(group: str) -> dict[str, Any]:
    needs = {"id": group, "resources": {EGRESS: 1000}, "required": ["CUSTOM_PHYSNET_ONE"]}
    return {"request_groups": [needs], "same_subtree": [group]}


async def used(c: FullCloud) -> dict[str, int]:
    """The claimed bandwidth, by provider."""
    sql = """SELECT p.name, a.used FROM allocations a JOIN resource_providers p ON p.id = a.provider_id
             WHERE a.resource_class = $1"""
    return {row["name"]: row["used"] for row in await c.db.fetch(sql, EGRESS)}


async def profile(c: FullCloud, port_id: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(await c.db.fetch_value("SELECT profile FROM ports WHERE id = $1", port_id))
    return found


async def act(c: FullCloud, server_id: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await c.post(f"/servers/{server_id}/action", body, as_="admin", version="2.96")
    assert answer.status in (202, 204), answer.body
    return await c.wait_until_settled(server_id)


def test_bandwidth_is_claimed_and_follows_the_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            neutron, names = use_neutron(c.services, c.app), await add_bandwidth(c)
            port_id, group = (await make_port(c, c.network_id))["id"], new_id()
            neutron.resource_requests[port_id] = groups_request(group)

            async def check(shown: dict[str, Any]) -> None:
                provider = f"{shown[HOST]}:br-ex"
                allocation = (await profile(c, port_id))["allocation"]
                assert {key: names[uuid] for key, uuid in allocation.items()} == {group: provider}
                assert (await used(c))[provider] == 1000

            server = await c.boot_active(networks=[{"port": port_id}])
            await check(server)
            assert len(await used(c)) == 1
            await check(await act(c, server["id"], {"migrate": None}))
            assert len(await used(c)) == 2
            reverted = await act(c, server["id"], {"revertResize": None})
            assert reverted[HOST] == server[HOST]
            await check(reverted)
            await check(await act(c, server["id"], {"os-migrateLive": {"host": None, "block_migration": "auto"}}))
            assert len(await used(c)) == 1
            neutron.unbound.add(server[HOST])
            failed = await act(c, server["id"], {"migrate": None})
            assert "could not be bound" in failed["fault"]["message"]
            await check(failed)
            await c.delete(f"/servers/{server['id']}")
            await c.wait_until_deleted(server["id"])
            assert (await used(c), await profile(c, port_id)) == ({}, {})

    run(scenario())


def test_bandwidth_that_no_host_has_left_is_no_valid_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            neutron, names = use_neutron(c.services, c.app), await add_bandwidth(c)
            first, second = [(await make_port(c, c.network_id))["id"] for _ in range(2)]
            # The form of a Neutron without the extension for groups.
            one = {"resources": {EGRESS: 1000}, "required": ["CUSTOM_PHYSNET_ONE"]}
            neutron.resource_requests |= {first: one, second: one}
            await c.boot_active(networks=[{"port": first}])
            assert names[(await profile(c, first))["allocation"]] == "sim-001:br-ex"
            shown = await c.wait_until_settled((await c.boot(networks=[{"port": second}]))["id"])
            assert (shown["status"], await profile(c, second)) == ("ERROR", {})

    run(scenario())


def test_port_with_resources_cannot_be_attached_later(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            neutron, _ = use_neutron(c.services, c.app), await add_bandwidth(c)
            port_id = (await make_port(c, c.network_id))["id"]
            neutron.resource_requests[port_id] = groups_request(new_id())
            server = await c.boot_active()
            body = {"interfaceAttachment": {"port_id": port_id}}
            answer = await c.post(f"/servers/{server['id']}/os-interface", body)
            assert answer.status == 400
            assert b"resource_request" in answer.body

    run(scenario())


def test_detached_port_frees_its_bandwidth(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            neutron, _ = use_neutron(c.services, c.app), await add_bandwidth(c, total=3000)
            first, second = [(await make_port(c, c.network_id))["id"] for _ in range(2)]
            neutron.resource_requests |= {port: groups_request(new_id()) for port in (first, second)}
            server = await c.boot_active(networks=[{"port": first}, {"port": second}])
            assert await used(c) == {"sim-001:br-ex": 2000}
            for left in ({"sim-001:br-ex": 1000}, {}):
                port_id = second if left else first
                assert (await c.delete(f"/servers/{server['id']}/os-interface/{port_id}")).status == 202
                await wait_until_finished(c.db)
                assert (await used(c), await profile(c, port_id)) == (left, {})

    run(scenario())


def test_port_that_cannot_be_freed_keeps_its_bandwidth(database_url: str) -> None:
    """The undo of a detachment binds the port with the resources that the server still holds."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            neutron, _ = use_neutron(c.services, c.app), await add_bandwidth(c)
            port_id = (await make_port(c, c.network_id))["id"]
            neutron.resource_requests[port_id] = groups_request(new_id())
            server = await c.boot_active(networks=[{"port": port_id}])
            before = await profile(c, port_id)
            row = OperationRow.decode(
                {**(await c.db.fetch_one("SELECT * FROM operations WHERE server_id = $1", server["id"]) or {})}
                | {"kind": "detach_interface", "params": orjson.dumps({"port_id": port_id}).decode()}
            )
            op = DetachInterface(row, services=c.services, db=c.db)
            assert await detach_interface.free(op)
            assert await profile(c, port_id) == {}
            await detach_interface.own_again(op)
            assert await profile(c, port_id) == before
            assert len((await c.show(server["id"]))["addresses"]) == 1

    run(scenario())
