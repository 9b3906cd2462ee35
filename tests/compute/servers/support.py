"""Helpers for tests of servers: count resources, configure the simulator, make networks, ports and flavors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import structs

from kilonova.compute.api import api
from kilonova.compute.servers.server import EmbeddedFlavor, Interface, Server
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore
from kilonova.hosts.messages import Guest
from kilonova.http import Context
from tests.support.cloud import DEMO, TOKENS, Cloud, fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud

NETWORK = "/network/v2.0"
COUNTED_TABLES = ("servers WHERE NOT deleted", "operations", "ports", "networks", "allocations", "consumers")
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"


def make_server(server_id: str = "s", **values: Any) -> Server:
    """An active server, which is not in the database."""
    flavor = EmbeddedFlavor(name="m1.tiny", vcpus=1, ram=512, disk=1, ephemeral=0, swap=0, extra_specs={})
    server = Server(
        id=server_id,
        project_id=DEMO,
        user_id="member-id",
        name="s",
        hostname="s",
        vm_state="active",
        power_state=1,
        flavor_id="1",
        flavor=flavor,
        vcpus=1,
        ram=512,
        image_properties={},
        metadata={},
        nics=[],
        scheduler_hints={},
        config_drive=False,
        disk_config="AUTO",
        reservation_id="r-1",
        launch_index=0,
        created_at=1.0,
        updated_at=1.0,
    )
    return structs.replace(server, **values)


def make_interface(port_id: str) -> Interface:
    return Interface(
        port_id=port_id, network_id="n", label="net", mac="", addresses=[], security_groups=[], tag=None, given=False
    )


async def count_resources(c: FullCloud) -> dict[str, Any]:
    """The number of rows of each table that servers use, and of guests."""
    rows = {table: await c.db.fetch_value(f"SELECT COUNT(*) FROM {table}") for table in COUNTED_TABLES}
    return {**rows, "guests": len(await c.guests())}


async def count_server_resources(c: FullCloud, server_id: str) -> dict[str, Any]:
    """The number of allocations, ports and guests of one server."""
    return {
        "allocations": await c.db.fetch_value("SELECT COUNT(*) FROM allocations WHERE consumer_uuid = $1", server_id),
        "ports": await c.db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_id = $1", server_id),
        "guests": int(server_id in await c.guests()),
    }


NO_RESOURCES = {"allocations": 0, "ports": 0, "guests": 0}


async def create_refusal(c: FullCloud, version: str = "2.96", as_: str = "member", **keys: Any) -> tuple[int, str]:
    """Status and message of a refused create, which writes nothing. Keys with the value `...` are omitted."""
    before = await count_resources(c)
    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", **keys}
    body = {"server": {key: value for key, value in server.items() if value is not ...}}
    answer = await c.post("/servers", body, as_=as_, version=version)
    assert answer.status >= 400, (keys, answer.body)
    status, _, message = fault(answer)
    assert await count_resources(c) == before, keys
    return status, message


@contextmanager
def sim_store(c: FullCloud) -> Iterator[SimStore]:
    """The simulator's file, opened as another process opens it."""
    store = SimStore(Path(c.services.config.data) / SIM_FILE_NAME)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def rules(c: FullCloud) -> Iterator[Rules]:
    """The simulator's failure and latency rules, as `kilonova sim` writes them."""
    with sim_store(c) as store:
        yield Rules(store)


@asynccontextmanager
async def unreachable_after(sim: Rules, host: str, *rule_ids: int) -> AsyncIterator[None]:
    """Make the host unreachable for `describe` when one of these rules has fired.

    Not earlier: an operation soon gives up on a host that does not respond to `describe`, even before such a step.
    """

    async def disconnect() -> None:
        while not any(rule.fired and rule.id in rule_ids for rule in sim.all()):
            await asyncio.sleep(0.005)
        sim.add_failure(host, "describe", "unreachable", None, None)

    task = asyncio.create_task(disconnect())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def guest_on(c: FullCloud, host: str, server_id: str) -> Guest:
    """The specification of a guest, as the host received it."""
    with sim_store(c) as store:
        guest = store.spec(host, server_id)
    assert guest is not None
    return guest


async def make_network(c: Cloud, name: str, cidr: str | None = "10.9.0.0/24", as_: str = "member", **keys: Any) -> str:
    answer = await c.post("/networks", {"network": {"name": name, **keys}}, as_=as_, root=NETWORK)
    assert answer.status == 201, answer.body
    network_id: str = answer.json()["network"]["id"]
    if cidr is not None:
        subnet = {"network_id": network_id, "cidr": cidr, "ip_version": 6 if ":" in cidr else 4}
        answer = await c.post("/subnets", {"subnet": subnet}, as_=as_, root=NETWORK)
        assert answer.status == 201, answer.body
    return network_id


async def make_port(c: Cloud, network_id: str, as_: str = "member", **keys: Any) -> dict[str, Any]:
    answer = await c.post("/ports", {"port": {"network_id": network_id, **keys}}, as_=as_, root=NETWORK)
    assert answer.status == 201, answer.body
    port: dict[str, Any] = answer.json()["port"]
    return port


async def show_port(c: Cloud, port_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await c.get(f"/ports/{port_id}", as_="admin", root=NETWORK)).json()["port"]
    return found


def make_context(c: Cloud, as_: str = "member") -> Context:
    """A request of this caller, for tests that call a function of a route."""
    ctx = Context(api, c.services, {"x-auth-token": as_}, "req-test")
    ctx.token = TOKENS[as_]
    return ctx


async def act(c: Cloud, server_id: str, action: str, body: Any = None, **options: Any) -> Any:
    return await c.post(f"/servers/{server_id}/action", {action: body}, **options)


async def make_flavor(c: Cloud, flavor_id: str, **keys: Any) -> str:
    flavor = {"name": flavor_id, "id": flavor_id, "ram": 512, "vcpus": 1, "disk": 1, **keys}
    answer = await c.post("/flavors", {"flavor": flavor}, as_="admin", version="2.1")
    assert answer.status == 200, answer.body
    return flavor_id


async def wait_for_fields(c: FullCloud, server_id: str, **fields: Any) -> dict[str, Any]:
    """Wait until the server shows these values. `OS_EXT_STS__task_state` stands for `OS-EXT-STS:task_state`."""
    wanted = {key.replace("__", ":").replace("OS_EXT_", "OS-EXT-"): value for key, value in fields.items()}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            server = await c.show(server_id)
            if all(server[key] == value for key, value in wanted.items()):
                return server
            await asyncio.sleep(0.005)
