"""The services cinder-scheduler and cinder-volume. They run in every worker process, and are up while one worker is."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from kilonova.http.errors import Conflict
from kilonova.store import Reader, Row, Transaction
from kilonova.store.records import Record
from kilonova.volume.backend_capabilities import BACKEND, HOST

if TYPE_CHECKING:
    from kilonova.http import Context

SCHEDULER, VOLUME = "cinder-scheduler", "cinder-volume"
HOSTS = {SCHEDULER: HOST, VOLUME: BACKEND}
_GIB = 1024**3


class ServiceState(Record, frozen=True):
    """The state of a service that was ever disabled."""

    table: ClassVar[str] = "volume_services"

    program: str
    disabled: bool
    disabled_reason: str | None


class Service(Struct, frozen=True):
    """`last_seen_at` is None if no worker has ever reported."""

    program: str
    host: str
    zone: str
    disabled: bool
    disabled_reason: str | None
    up: bool
    last_seen_at: float | None


async def list_services(ctx: Context) -> list[Service]:
    found = ServiceState.decode_all(await ctx.db.fetch("SELECT * FROM volume_services"))
    states = {state.program: state for state in found}
    workers = await ctx.services.compute_status.workers(ctx.now)
    services = []
    for program, host in HOSTS.items():
        state = states.get(program) or ServiceState(program, disabled=False, disabled_reason=None)
        services.append(
            Service(
                program=program,
                host=host,
                zone=ctx.services.config.scheduler.default_zone,
                disabled=state.disabled,
                disabled_reason=state.disabled_reason,
                up=workers.up,
                last_seen_at=workers.last_seen_at,
            )
        )
    return services


async def set_disabled(tx: Transaction, program: str, disabled: bool, reason: str | None, now: float) -> None:
    await tx.execute(
        """
        INSERT INTO volume_services (program, disabled, disabled_reason, updated_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT (program) DO UPDATE SET disabled = excluded.disabled, disabled_reason = excluded.disabled_reason,
            updated_at = excluded.updated_at
        """,
        program,
        disabled,
        reason,
        now,
    )


async def check_enabled(reader: Reader) -> None:
    """Refuse (409) new volumes while a service is disabled."""
    row = await reader.fetch_one("SELECT * FROM volume_services WHERE disabled ORDER BY program LIMIT 1")
    state = ServiceState.decode_optional(row)
    if state is not None:
        reason = f": {state.disabled_reason}" if state.disabled_reason else "."
        raise Conflict(f"No volume can be created while {state.program} is disabled{reason}")


async def usage_by_project(reader: Reader) -> list[Row]:
    """For each project its `volumes`, `volume_gb`, `snapshots` and `snapshot_gb`."""
    return await reader.fetch(
        """
        SELECT project_id, SUM(volumes) AS volumes, SUM(volume_gb) AS volume_gb, SUM(snapshots) AS snapshots,
            SUM(snapshot_gb) AS snapshot_gb
        FROM (
            SELECT project_id, 1 AS volumes, size AS volume_gb, 0 AS snapshots, 0 AS snapshot_gb FROM volumes
            UNION ALL
            SELECT project_id, 0 AS volumes, 0 AS volume_gb, 1 AS snapshots, size AS snapshot_gb FROM volume_snapshots
        ) each_thing GROUP BY project_id ORDER BY project_id
        """
    )


async def capacity(directory: Path) -> tuple[float, float]:
    """Total and free space of the disk with the volumes, in GiB."""
    used = await asyncio.to_thread(shutil.disk_usage, directory)
    return round(used.total / _GIB, 2), round(used.free / _GIB, 2)
