"""The compute API with everything behind it: image, volume and network services, simulated hosts, scheduler, worker.

async with whole(database_url, hosts=3) as c:
    server = await c.boot(name="a")
    await c.settled(server["id"])
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import kilonova.compute.operations
import kilonova.volume.operations  # noqa: F401 - both declare what there is to carry out
from kilonova import compute, volume
from kilonova.compute.flavors import model as flavors
from kilonova.config import Config, load
from kilonova.hosts.drivers.sim.shapes import Shapes
from kilonova.hosts.drivers.sim.store import Size
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.heartbeat import Heartbeat
from kilonova.hosts.images import ImageService
from kilonova.hosts.messages import GuestState
from kilonova.hosts.transport import list_all_guests
from kilonova.http.client import InProcess
from kilonova.image.client import ImageClient
from kilonova.image.routes import api as image_api
from kilonova.image.seed import seed as seed_image
from kilonova.network.client import NetworkClient
from kilonova.network.routes import api as network_api
from kilonova.network.seed import seed as seed_network
from kilonova.operations import Worker
from kilonova.policy import Policy
from kilonova.scheduler import Scheduler
from kilonova.seeds import spread
from kilonova.services import Services
from kilonova.store import Database
from kilonova.volume.client import VolumeClient
from kilonova.volume.compute import ComputeClient
from kilonova.volume.seed import seed as seed_volume_type
from tests.support.cloud import ADMIN, Cloud, Identity, Tokens
from tests.support.databases import opened
from tests.support.delayed import DELAYS
from tests.support.proves import Witness

PATIENCE = 60.0
# Hosts are heard of once, at the start; and who waits for a silent one does so for longer than anybody's patience.
LONG: dict[str, Any] = {"hosts__down_seconds": 600.0, "operations__host_seconds": 600.0}
# The scheduler looks before each decision who is silent, where a test changes that.
WATCHFUL: dict[str, Any] = {"scheduler__liveness_every": 0}
NO_SHAPES = Shapes()


class Whole(Cloud):
    hosts: EmbeddedHosts
    heartbeat: Heartbeat
    network_id: str
    image_id: str

    async def boot(self, *, as_: str = "member", version: str = "2.96", **keys: Any) -> dict[str, Any]:
        server = {"name": "s", "flavorRef": "1", "imageRef": self.image_id, "networks": "auto", **keys}
        answer = await self.post("/servers", {"server": server}, as_=as_, version=version)
        assert answer.status == 202, answer.body
        made: dict[str, Any] = answer.json()["server"]
        return made

    async def show(self, server_id: str, *, as_: str = "admin", version: str = "2.96") -> dict[str, Any]:
        answer = await self.get(f"/servers/{server_id}", as_=as_, version=version)
        assert answer.status == 200, answer.body
        shown: dict[str, Any] = answer.json()["server"]
        return shown

    async def settled(self, server_id: str) -> dict[str, Any]:
        """The server once nothing is happening to it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                shown = await self.show(server_id)
                if shown["OS-EXT-STS:task_state"] is None and shown["status"] != "BUILD":
                    return shown
                await asyncio.sleep(0.01)

    async def gone(self, server_id: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await self.get(f"/servers/{server_id}", as_="admin")).status != 404:
                await asyncio.sleep(0.01)

    async def active(self, **keys: Any) -> dict[str, Any]:
        shown = await self.settled((await self.boot(**keys))["id"])
        assert shown["status"] == "ACTIVE", shown
        return shown

    async def guests(self) -> dict[str, tuple[str, str]]:
        """Host and power of every guest, by its id."""
        return {guest.id: (host, guest.power) for host, guest in await self.everything() if not guest.slot}

    async def kept(self) -> list[tuple[str, GuestState]]:
        """What hosts keep in slots, with the host."""
        return [(host, guest) for host, guest in await self.everything() if guest.slot]

    async def everything(self) -> list[tuple[str, GuestState]]:
        """Guests and slots, each with its host, in the order of the hosts' names."""
        found: list[tuple[str, GuestState]] = []
        for host, guests in sorted((await list_all_guests(self.hosts, self.hosts.names)).items()):
            assert isinstance(guests, list), guests
            found += [(host, guest) for guest in guests]
        return found


def settings(**flags: Any) -> Config:
    return load(environ={}, flags={name.replace("__", "."): value for name, value in {**LONG, **flags}.items()})


async def furnish(
    services: Services, directory: Path, stack: AsyncExitStack, hosts: int, shapes: Shapes = NO_SHAPES
) -> Whole:
    """Everything but the worker, on a database that is open."""
    db = services.db
    whole = Whole(services, [compute.build(), image_api, volume.build(), network_api])
    services.policy = Policy()
    services.tokens = Tokens()
    services.metrics = Witness()
    services.identity = Identity()  # type: ignore[assignment]
    services.image = ImageClient(DELAYS.caller(InProcess(whole.app, "/image")))
    services.network = NetworkClient(DELAYS.caller(InProcess(whole.app, "/network")))
    services.volume = VolumeClient(DELAYS.caller(InProcess(whole.app, "/volume")))
    services.compute = ComputeClient(DELAYS.caller(InProcess(whole.app, "/compute")))
    async with db.transaction() as tx:
        await flavors.seed(tx)
        await seed_volume_type(tx)
    whole.network_id = await seed_network(db, ADMIN)
    whole.image_id = await seed_image(db, directory / "images", ADMIN)
    whole.hosts = EmbeddedHosts(
        EmbeddedConfig(directory=directory, hosts=hosts, size=Size(8, 16384, 100), shapes=shapes),
        ImageService(InProcess(whole.app, "/image")),
    )
    services.hosts = DELAYS.transport(whole.hosts)
    stack.callback(whole.hosts.close)
    whole.heartbeat = Heartbeat(db, whole.hosts, process_host="control")
    await whole.heartbeat.beat()
    services.scheduler = Scheduler(db, services.config.scheduler, down_time=services.config.hosts.down_seconds)
    stack.push_async_callback(services.scheduler.close)
    return whole


@asynccontextmanager
async def whole(
    database_url: str, *, hosts: int = 3, zones: tuple[str, ...] = (), shapes: Shapes = NO_SHAPES, **flags: Any
) -> AsyncIterator[Whole]:
    """`flags` are configuration keys with two underscores for the dot: `quota__instances=1`."""
    services = Services()
    services.config = settings(**flags)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services.config.data = str(directory)
        services.db = await stack.enter_async_context(opened(database_url))
        cloud = await furnish(services, directory, stack, hosts, shapes)
        if zones:
            await spread(services.db, zones, cloud.hosts.names)
        await stack.enter_async_context(working(services.db, services))
        yield cloud


@asynccontextmanager
async def working(db: Database, services: Services) -> AsyncIterator[None]:
    worker = Worker(db, services, sweep=0.5)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        await worker.stop()
        await task
