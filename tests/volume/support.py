"""The volume service on a real database, with fixed tokens instead of an identity service.

async with volume_cloud(database_url) as c:
    response = await c.get("/volumes", as_="member", version="3.50")
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import kilonova.volume.operations  # noqa: F401 - registers the operations
from kilonova import volume
from kilonova.compute.status import ComputeStatus
from kilonova.config import load
from kilonova.http.client import ClientResponse, InProcess
from kilonova.ids import new_id
from kilonova.image import build as build_image
from kilonova.image.client import ImageClient
from kilonova.policy import Policy
from kilonova.services import Services
from kilonova.store import Database
from kilonova.store.insert import insert_row
from kilonova.volume.client import VolumeClient
from kilonova.volume.compute_client import ComputeClient
from tests.support.cloud import DEMO, Cloud, Identity, Tokens
from tests.support.databases import opened
from tests.support.full_cloud import running_worker
from tests.support.route_coverage import RecordingMetrics

NEWEST = "3.71"
TYPE = "11111111-1111-4111-8111-111111111111"


class VolumeCloud(Cloud):
    async def request(
        self, method: str, path: str, *, version: str | None = NEWEST, root: str = "/volume/v3", **options: Any
    ) -> ClientResponse:
        headers = dict(options.pop("headers", None) or {})
        if version is not None:
            headers["OpenStack-API-Version"] = f"volume {version}"
        return await super().request(method, path, root=root, headers=headers, **options)


@asynccontextmanager
async def volume_cloud(database_url: str, *, worker: bool = True, **flags: Any) -> AsyncIterator[VolumeCloud]:
    """`flags` are configuration keys with two underscores for the dot: `volume_quota__volumes=1`."""
    services = Services()
    services.config = load(environ={}, flags={name.replace("__", "."): value for name, value in flags.items()})
    async with AsyncExitStack() as stack:
        services.config.data = str(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        services.db = await stack.enter_async_context(opened(database_url))
        cloud = await furnish(services)
        if worker:
            await stack.enter_async_context(running_worker(services.db, services))
        yield cloud


async def furnish(services: Services) -> VolumeCloud:
    """Everything but the worker."""
    services.policy, services.tokens, services.metrics = Policy(), Tokens(), RecordingMetrics()
    services.identity = Identity()  # type: ignore[assignment]
    cloud = VolumeCloud(services, [volume.build(), build_image()])
    services.image = ImageClient(InProcess(cloud.app, "/image"))
    services.volume = VolumeClient(InProcess(cloud.app, "/volume"))
    services.compute = ComputeClient(InProcess(cloud.app, "/compute"))
    services.compute_status = ComputeStatus(services.db, services.config)
    await put_type(services.db, TYPE, "__DEFAULT__")
    return cloud


async def put_type(db: Database, type_id: str, name: str, extra_specs: str = "{}") -> None:
    async with db.transaction() as tx:
        await tx.execute(
            "INSERT INTO volume_types (id, name, is_public, extra_specs, created_at, updated_at)"
            " VALUES ($1, $2, TRUE, $3, 1.0, 1.0)",
            type_id,
            name,
            extra_specs,
        )


async def put_volume(db: Database, **values: Any) -> str:
    """Insert the row of a volume, without an operation; return its id."""
    row = {
        "id": new_id(),
        "project_id": DEMO,
        "user_id": "member-id",
        "name": "v",
        "size": 1,
        "status": "available",
        "type_id": TYPE,
        "zone": "nova",
        "bootable": False,
        "multiattach": False,
        "data_id": new_id(),
        "created_at": 1.0,
        "updated_at": 1.0,
        **values,
    }
    return await _put(db, "volumes", row)


async def put_snapshot(db: Database, volume_id: str, **values: Any) -> str:
    """Insert the row of a snapshot; return its id."""
    row = {
        "id": new_id(),
        "project_id": DEMO,
        "user_id": "member-id",
        "volume_id": volume_id,
        "name": "s",
        "size": 1,
        "status": "available",
        "bootable": False,
        "created_at": 1.0,
        "updated_at": 1.0,
        **values,
    }
    return await _put(db, "volume_snapshots", row)


async def _put(db: Database, table: str, row: dict[str, Any]) -> str:
    async with db.transaction() as tx:
        await insert_row(tx, table, row)
    return str(row["id"])
