"""What the tests of servers share: counting what is held, hosts that misbehave, and the services around."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore
from kilonova.hosts.messages import Guest
from tests.support.cloud import Cloud, fault
from tests.support.whole import PATIENCE, Whole

NETWORK = "/network/v2.0"
HELD = ("servers WHERE NOT deleted", "operations", "ports", "networks", "allocations", "consumers")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"


async def held(c: Whole) -> dict[str, Any]:
    """How many rows there are of everything that a server takes, and how many guests."""
    rows = {what: await c.db.fetch_value(f"SELECT COUNT(*) FROM {what}") for what in HELD}
    return {**rows, "guests": len(await c.guests())}


async def holdings(c: Whole, server_id: str) -> dict[str, Any]:
    """What one server holds: its share of a host, its ports, its guest."""
    return {
        "allocations": await c.db.fetch_value("SELECT COUNT(*) FROM allocations WHERE consumer_uuid = $1", server_id),
        "ports": await c.db.fetch_value("SELECT COUNT(*) FROM ports WHERE device_id = $1", server_id),
        "guests": int(server_id in await c.guests()),
    }


NOTHING = {"allocations": 0, "ports": 0, "guests": 0}


async def refused(c: Whole, version: str = "2.96", as_: str = "member", **keys: Any) -> tuple[int, str]:
    """Status and message of a create that writes nothing. A key of value `...` is left out."""
    before = await held(c)
    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", **keys}
    body = {"server": {key: value for key, value in server.items() if value is not ...}}
    answer = await c.post("/servers", body, as_=as_, version=version)
    assert answer.status >= 400, (keys, answer.body)
    status, _, message = fault(answer)
    assert await held(c) == before, keys
    return status, message


@contextmanager
def hypervisors(c: Whole) -> Iterator[SimStore]:
    """The simulated hosts, as another process sees them."""
    store = SimStore(Path(c.services.config.data) / FILE_NAME)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def rules(c: Whole) -> Iterator[Rules]:
    """What shall go wrong on the simulated hosts, as `kilonova sim` writes it."""
    with hypervisors(c) as store:
        yield Rules(store)


@asynccontextmanager
async def silent_from(sim: Rules, host: str, *numbers: int) -> AsyncIterator[None]:
    """The host answers no question any more once one of these rules has struck it.

    Not before: who is told that a host is not there gives up soon whatever it does, and what it does may take its time.
    """

    async def fall() -> None:
        while not any(rule.fired and rule.id in numbers for rule in sim.all()):
            await asyncio.sleep(0.005)
        sim.add_failure(host, "describe", "unreachable", None, None)

    falls = asyncio.create_task(fall())
    try:
        yield
    finally:
        falls.cancel()
        with suppress(asyncio.CancelledError):
            await falls


def guest_on(c: Whole, host: str, server_id: str) -> Guest:
    """What the host was asked to build."""
    with hypervisors(c) as store:
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


async def port(c: Cloud, port_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await c.get(f"/ports/{port_id}", as_="admin", root=NETWORK)).json()["port"]
    return found


async def act(c: Cloud, server_id: str, action: str, body: Any = None, **options: Any) -> Any:
    return await c.post(f"/servers/{server_id}/action", {action: body}, **options)


async def make_flavor(c: Cloud, flavor_id: str, **keys: Any) -> str:
    flavor = {"name": flavor_id, "id": flavor_id, "ram": 512, "vcpus": 1, "disk": 1, **keys}
    answer = await c.post("/flavors", {"flavor": flavor}, as_="admin", version="2.1")
    assert answer.status == 200, answer.body
    return flavor_id


async def until(c: Whole, server_id: str, **shown: Any) -> dict[str, Any]:
    """The server as soon as it shows these values; names of two words have a colon for two underscores."""
    wanted = {key.replace("__", ":").replace("OS_EXT_", "OS-EXT-"): value for key, value in shown.items()}
    async with asyncio.timeout(PATIENCE):
        while True:
            server = await c.show(server_id)
            if all(server[key] == value for key, value in wanted.items()):
                return server
            await asyncio.sleep(0.005)
