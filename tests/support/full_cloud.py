"""The compute API with everything behind it: image, volume and network services, simulated hosts, scheduler, worker.

async with full_cloud(database_url, hosts=3) as c:
    server = await c.boot(name="a")
    await c.wait_until_settled(server["id"])
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import kilonova.compute.operations
import kilonova.share.operations
import kilonova.volume.operations  # noqa: F401 - all register operations
from kilonova import compute, share, volume
from kilonova.compute.flavors import model as flavors
from kilonova.compute.pending_cleanups import find_pending_cleanups
from kilonova.compute.status import ComputeStatus
from kilonova.config import Config, load
from kilonova.hosts.drivers.sim.shapes import Shapes
from kilonova.hosts.drivers.sim.store import Size
from kilonova.hosts.embedded import EmbeddedConfig, EmbeddedHosts
from kilonova.hosts.heartbeat import Heartbeat
from kilonova.hosts.images import ImageService
from kilonova.hosts.messages import GuestState
from kilonova.hosts.transport import list_all_guests
from kilonova.http.client import InProcess
from kilonova.identity.token_keys import ConfiguredKeys, new_key
from kilonova.image import build as build_image
from kilonova.image.client import ImageClient
from kilonova.image.seed import seed as seed_image
from kilonova.image.tickets import image_tickets
from kilonova.network import build as build_network
from kilonova.network.client import NetworkClient
from kilonova.network.seed import seed as seed_network
from kilonova.operations import Worker
from kilonova.policy import Policy
from kilonova.scheduler import Scheduler
from kilonova.seeds import spread_hosts
from kilonova.services import Services
from kilonova.share.client import ShareClient
from kilonova.store import Database
from kilonova.volume.client import VolumeClient
from kilonova.volume.compute_client import ComputeClient
from kilonova.volume.seed import seed as seed_volume_type
from tests.support.cloud import ADMIN, Cloud, Identity, Tokens
from tests.support.databases import opened
from tests.support.route_coverage import RecordingMetrics
from tests.support.soak_delays import DELAYS

TIMEOUT_SECONDS = 60.0
# Longer than a test: hosts report only once, and operations must not give up on a host.
LONG_TIMEOUTS: dict[str, Any] = {"hosts__down_seconds": 600.0, "operations__host_timeout_seconds": 600.0}
# The scheduler reads which hosts are up before each decision.
WITHOUT_LIVENESS_CACHE: dict[str, Any] = {"scheduler__liveness_seconds": 0}
NO_SHAPES = Shapes()


class FullCloud(Cloud):
    hosts: EmbeddedHosts
    heartbeat: Heartbeat
    network_id: str
    image_id: str

    async def boot(self, *, as_: str = "member", version: str = "2.96", **keys: Any) -> dict[str, Any]:
        server = {"name": "s", "flavorRef": "1", "imageRef": self.image_id, "networks": "auto", **keys}
        answer = await self.post("/servers", {"server": server}, as_=as_, version=version)
        assert answer.status == 202, answer.body
        created: dict[str, Any] = answer.json()["server"]
        return created

    async def show(self, server_id: str, *, as_: str = "admin", version: str = "2.96") -> dict[str, Any]:
        answer = await self.get(f"/servers/{server_id}", as_=as_, version=version)
        assert answer.status == 200, answer.body
        shown: dict[str, Any] = answer.json()["server"]
        return shown

    async def wait_until_settled(self, server_id: str) -> dict[str, Any]:
        """The server, once it has no task state."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                shown = await self.show(server_id)
                if shown["OS-EXT-STS:task_state"] is None and shown["status"] != "BUILD":
                    return shown
                await asyncio.sleep(0.01)

    async def wait_until_deleted(self, server_id: str) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await self.get(f"/servers/{server_id}", as_="admin")).status != 404:
                await asyncio.sleep(0.01)

    async def boot_active(self, **keys: Any) -> dict[str, Any]:
        shown = await self.wait_until_settled((await self.boot(**keys))["id"])
        assert shown["status"] == "ACTIVE", shown
        return shown

    async def guests(self) -> dict[str, tuple[str, str]]:
        """Host and power state of each guest, by its id."""
        return {guest.id: (host, guest.power) for host, guest in await self.list_guests_and_slots() if not guest.slot}

    async def list_slots(self) -> list[tuple[str, GuestState]]:
        """Guests in slots, each with its host."""
        return [(host, guest) for host, guest in await self.list_guests_and_slots() if guest.slot]

    async def list_guests_and_slots(self) -> list[tuple[str, GuestState]]:
        """Guests and guests in slots, each with its host, sorted by host."""
        found: list[tuple[str, GuestState]] = []
        for host, guests in sorted((await list_all_guests(self.hosts, self.hosts.names)).items()):
            assert isinstance(guests, list), guests
            found += [(host, guest) for guest in guests]
        return found


def load_settings(**flags: Any) -> Config:
    return load(
        environ={}, flags={name.replace("__", "."): value for name, value in {**LONG_TIMEOUTS, **flags}.items()}
    )


async def build_full_cloud(
    services: Services, directory: Path, stack: AsyncExitStack, hosts: int, shapes: Shapes = NO_SHAPES
) -> FullCloud:
    """All services except the worker, on an open database."""
    db = services.db
    full = FullCloud(services, [compute.build(), build_image(), volume.build(), build_network(), share.build()])
    services.policy = Policy()
    services.tokens = Tokens()
    services.metrics = RecordingMetrics()
    services.compute_status = ComputeStatus(db, services.config)
    services.identity = Identity()  # type: ignore[assignment]
    services.image_tickets = image_tickets(ConfiguredKeys([new_key()]))
    services.image_tickets = image_tickets(ConfiguredKeys([new_key()]))
    services.image = ImageClient(DELAYS.caller(InProcess(full.app, "/image")))
    services.network = NetworkClient(DELAYS.caller(InProcess(full.app, "/network")))
    services.volume = VolumeClient(DELAYS.caller(InProcess(full.app, "/volume")))
    services.share = ShareClient(DELAYS.caller(InProcess(full.app, "/share")))
    services.compute = ComputeClient(DELAYS.caller(InProcess(full.app, "/compute")))
    async with db.transaction() as tx:
        await flavors.seed(tx)
        await seed_volume_type(tx)
    full.network_id = await seed_network(db, ADMIN)
    full.image_id = await seed_image(db, directory / "images", ADMIN)
    full.hosts = EmbeddedHosts(
        EmbeddedConfig(directory=directory, hosts=hosts, size=Size(8, 16384, 100), shapes=shapes),
        ImageService(InProcess(full.app, "/image")),
    )
    services.hosts = DELAYS.transport(full.hosts)
    stack.callback(full.hosts.close)
    full.heartbeat = Heartbeat(db, full.hosts, process_host="control", find_cleanups=find_pending_cleanups)
    await full.heartbeat.beat()
    services.scheduler = Scheduler(db, services.config.scheduler, down_seconds=services.config.hosts.down_seconds)
    stack.push_async_callback(services.scheduler.close)
    return full


@asynccontextmanager
async def full_cloud(
    database_url: str, *, hosts: int = 3, zones: tuple[str, ...] = (), shapes: Shapes = NO_SHAPES, **flags: Any
) -> AsyncIterator[FullCloud]:
    """`flags` are configuration keys with two underscores for the dot: `quota__instances=1`."""
    services = Services()
    services.config = load_settings(**flags)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services.config.data = str(directory)
        services.db = await stack.enter_async_context(opened(database_url))
        cloud = await build_full_cloud(services, directory, stack, hosts, shapes)
        if zones:
            await spread_hosts(services.db, zones, cloud.hosts.names)
        await stack.enter_async_context(running_worker(services.db, services))
        yield cloud


@asynccontextmanager
async def running_worker(db: Database, services: Services) -> AsyncIterator[None]:
    worker = Worker(db, services, sweep=0.5)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        await worker.stop()
        await task
