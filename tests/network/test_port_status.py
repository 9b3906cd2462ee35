"""The current status of ports on networked hosts."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.hosts.registry import register
from tests.network.support import (
    Net,
    host_facts,
    net,
)
from tests.support import run
from tests.support.cloud import OTHER, put_server

GUEST = "9bd5d0a0-6b0a-4c2c-8f43-6a6f0d0f7a11"


async def _current_status(cloud: Net, port: dict[str, Any]) -> str:
    """The status, which show, list, filter and update must agree on."""
    statuses = {
        (await cloud.show("port", port["id"]))["status"],
        (await cloud.list_all("port", {"id": port["id"]}))[0]["status"],
        (await cloud.update("port", port, name="p"))["status"],
    }
    for status in ("ACTIVE", "DOWN"):
        if await cloud.list_all("port", {"status": status, "id": port["id"]}):
            statuses.add(status)
    (found,) = statuses
    return found


async def _create_bound_port(cloud: Net, network: dict[str, Any], host: str) -> dict[str, Any]:
    port = await cloud.create("port", network_id=network["id"])
    changes = {"binding:host_id": host, "device_id": GUEST, "device_owner": "compute:nova"}
    return await cloud.update("port", port, as_="admin", **changes)


async def _execute(cloud: Net, sql: str, *args: Any) -> None:
    async with cloud.services.db.transaction() as tx:
        await tx.execute(sql, *args)


def test_subport_is_active_while_the_guest_of_its_parent_runs(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register(cloud.services.db, [host_facts("one", networked=True)])
            await _execute(cloud, "UPDATE services SET last_seen_at = $1", clock.now())
            network, _ = await cloud.network_with_subnet()
            parent, port = [await cloud.create("port", network_id=network["id"]) for _ in range(2)]
            subports = [{"port_id": port["id"], "segmentation_id": 7}]
            await cloud.create("trunk", port_id=parent["id"], sub_ports=subports)
            await cloud.update("port", parent, as_="admin", **{"binding:host_id": "one", "device_id": GUEST})
            await put_server(cloud.services.db, GUEST, vm_state="active", power_state=1)
            assert await _current_status(cloud, port) == "ACTIVE"
            await _execute(cloud, "UPDATE servers SET power_state = $1", 4)
            assert await _current_status(cloud, port) == "DOWN"

    run(scenario())


def test_port_is_active_while_guest_runs_and_host_responds(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register(cloud.services.db, [host_facts("one", networked=True)])
            await _execute(cloud, "UPDATE services SET last_seen_at = $1", clock.now())
            network, _ = await cloud.network_with_subnet()
            port = await _create_bound_port(cloud, network, "one")
            assert await _current_status(cloud, port) == "DOWN"
            # While the server is built.
            await put_server(cloud.services.db, GUEST, vm_state="building", power_state=0)
            assert await _current_status(cloud, port) == "DOWN"
            for power, status in ((1, "ACTIVE"), (3, "ACTIVE"), (4, "DOWN"), (6, "DOWN"), (7, "DOWN"), (1, "ACTIVE")):
                await _execute(cloud, "UPDATE servers SET power_state = $1", power)
                assert await _current_status(cloud, port) == status, power
            await cloud.update("port", port, admin_state_up=False)
            assert await _current_status(cloud, port) == "DOWN"
            await cloud.update("port", port, admin_state_up=True)
            assert await _current_status(cloud, port) == "ACTIVE"
            await _execute(cloud, "UPDATE services SET forced_down = $1", True)
            assert await _current_status(cloud, port) == "DOWN"
            await _execute(cloud, "UPDATE services SET forced_down = $1, last_seen_at = $2", False, clock.now() - 3600)
            assert await _current_status(cloud, port) == "DOWN"

    run(scenario())


def test_status_tells_nothing_of_servers_of_other_projects(database_url: str) -> None:
    """A user can set the device of an own bound port to any server."""

    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register(cloud.services.db, [host_facts("one", networked=True)])
            await _execute(cloud, "UPDATE services SET last_seen_at = $1", clock.now())
            network, _ = await cloud.network_with_subnet()
            port = await _create_bound_port(cloud, network, "one")
            await put_server(cloud.services.db, GUEST, project_id=OTHER, power_state=1)
            assert await _current_status(cloud, port) == "DOWN"

    run(scenario())


def test_bound_port_on_simulated_host_is_active(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            await register(cloud.services.db, [host_facts("two", networked=False)])
            network, _ = await cloud.network_with_subnet()
            assert await _current_status(cloud, await _create_bound_port(cloud, network, "two")) == "ACTIVE"
            assert await _current_status(cloud, await _create_bound_port(cloud, network, "unknown")) == "ACTIVE"

    run(scenario())
