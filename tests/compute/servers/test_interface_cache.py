"""Servers show their interfaces without a request to a real Neutron: from their rows, which follow its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kilonova.compute.periodic import refresh_interfaces, tasks
from kilonova.compute.servers import interface_cache
from kilonova.compute.servers.server import Server
from kilonova.ids import new_id
from kilonova.store.records import encode_document
from tests.compute.operations.support import wait_until_finished
from tests.compute.servers.support import make_interface
from tests.support import run
from tests.support.cloud import put_server
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.neutron import Neutron, use_neutron

EVENTS = "/os-server-external-events"


@asynccontextmanager
async def neutron_cloud(database_url: str, **flags: Any) -> AsyncIterator[tuple[FullCloud, Neutron]]:
    async with full_cloud(database_url, hosts=1, **flags) as c:
        yield c, use_neutron(c.services, c.app)


async def no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


async def send(c: FullCloud, name: str, server_id: str) -> None:
    events = {"events": [{"name": name, "server_uuid": server_id, "tag": "port"}]}
    assert (await c.post(EVENTS, events, as_="service", version="2.1")).status == 200


async def rename_network(c: FullCloud, name: str) -> None:
    """Change what servers show of their interfaces, behind compute's back."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE networks SET name = $2 WHERE id = $1", c.network_id, name)


async def labels(c: FullCloud, server_id: str) -> list[str]:
    return list((await c.show(server_id))["addresses"])


def test_lists_ask_a_neutron_nothing(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            nics = encode_document([make_interface(new_id()), make_interface(new_id())])
            for _ in range(500):
                await put_server(c.db, new_id(), nics=nics)
            neutron.requests.clear()
            answer = await c.get("/servers/detail?limit=500")
            shown = answer.json()["servers"]
            assert len(shown) == 500
            await c.get(f"/servers/{shown[0]['id']}")
            await c.get(f"/servers/{shown[0]['id']}/ips")
            assert neutron.requests == []

    run(scenario())


def test_shown_floating_ips_are_those_of_the_row(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            nic = {**encode_fields(make_interface(new_id())), "floating_ips": ["198.51.100.7"]}
            server_id = new_id()
            await put_server(c.db, server_id, nics=encode_document([nic]))
            neutron.is_down = True
            (entries,) = (await c.show(server_id))["addresses"].values()
            assert [one["addr"] for one in entries if one["OS-EXT-IPS:type"] == "floating"] == ["198.51.100.7"]

    run(scenario())


def encode_fields(interface: Any) -> dict[str, Any]:
    return {name: getattr(interface, name) for name in interface.__struct_fields__}


def test_event_refreshes_the_interfaces(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, _):
            server = await c.boot_active()
            await rename_network(c, "renamed")
            assert await labels(c, server["id"]) != ["renamed"]
            await send(c, "network-changed", server["id"])
            await wait_until_finished(c.db)
            after = await c.show(server["id"])
            assert list(after["addresses"]) == ["renamed"]
            assert after["updated"] == server["updated"]

    run(scenario())


def test_refresh_waits_for_a_neutron_that_is_down(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, neutron):
            server = await c.boot_active()
            await rename_network(c, "renamed")
            neutron.is_down = True
            await send(c, "network-changed", server["id"])
            sql = "SELECT trouble FROM operations WHERE kind = 'refresh_interfaces' AND finished_at IS NULL"
            async with asyncio.timeout(30):
                while not await c.db.fetch_value(sql):
                    await asyncio.sleep(0.005)
            neutron.is_down = False
            await wait_until_finished(c.db)
            assert await labels(c, server["id"]) == ["renamed"]

    run(scenario())


def test_events_begin_one_refresh(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, _):
            server = await c.boot_active()
            events = [{"name": "network-changed", "server_uuid": server["id"]} for _ in range(5)]
            await c.post(EVENTS, {"events": events}, as_="service", version="2.1")
            await wait_until_finished(c.db)
            assert await c.db.fetch_value("SELECT COUNT(*) FROM operations WHERE kind = 'refresh_interfaces'") == 1

    run(scenario())


def test_periodic_task_finds_lost_events(database_url: str) -> None:
    async def scenario() -> None:
        assert refresh_interfaces in tasks()
        async with neutron_cloud(database_url) as (c, neutron):
            server = await c.boot_active()
            await rename_network(c, "renamed")
            await refresh_interfaces.run(c.services, no_pause)
            assert await labels(c, server["id"]) == ["renamed"]
            neutron.is_down = True
            await refresh_interfaces.run(c.services, no_pause)
            assert await labels(c, server["id"]) == ["renamed"]

    run(scenario())


def test_periodic_task_detaches_deleted_ports(database_url: str) -> None:
    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, _):
            server = await c.boot_active()
            async with c.db.transaction() as tx:
                await tx.execute("DELETE FROM ports WHERE device_id = $1", server["id"])
            await refresh_interfaces.run(c.services, no_pause)
            await wait_until_finished(c.db)
            assert (await c.show(server["id"]))["addresses"] == {}

    run(scenario())


def test_periodic_task_does_nothing_with_the_built_in_service(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server = await c.boot_active()
            before = await labels(c, server["id"])
            await rename_network(c, "renamed")
            await refresh_interfaces.run(c.services, no_pause)
            assert await labels(c, server["id"]) == before

    run(scenario())


def test_refresh_keeps_tags_and_adds_no_interface(database_url: str) -> None:
    """An operation may have detached an interface, or changed its tag, while the service was asked."""

    async def scenario() -> None:
        async with neutron_cloud(database_url) as (c, _):
            server_id = (await c.boot_active())["id"]
            await rename_network(c, "renamed")
            read = Server.decode_all(await c.db.fetch("SELECT * FROM servers WHERE id = $1", server_id))
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET nics = '[]' WHERE id = $1", server_id)
            await interface_cache.refresh(c.services, read)
            assert await labels(c, server_id) == []

    run(scenario())
