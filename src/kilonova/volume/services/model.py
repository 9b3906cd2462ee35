"""The parts of the service: they run in every worker process, and are up while one of those is."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.compute.zones import model as compute_zones
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.registry import CONDUCTOR
from kilonova.http.errors import Conflict
from kilonova.store import Reader, Row, Transaction
from kilonova.volume.backend import BACKEND, HOST

if TYPE_CHECKING:
    from kilonova.config import Config

SCHEDULER, VOLUME = "cinder-scheduler", "cinder-volume"
_HOSTS = {SCHEDULER: HOST, VOLUME: BACKEND}
_GIB = 1024**3


async def parts(reader: Reader, config: Config, now: float) -> list[Row]:
    """Each with `program`, `host`, `zone`, `disabled`, `disabled_reason`, `up` and `last_seen_at` (or None)."""
    said = {row["program"]: row for row in await reader.fetch("SELECT * FROM volume_services")}
    workers = await reader.fetch("SELECT * FROM services WHERE program = $1", CONDUCTOR)
    shared = {
        "zone": config.scheduler.default_zone,
        "up": any(is_up(worker, now, config.hosts.down_seconds) for worker in workers),
        "last_seen_at": max((worker["last_seen_at"] for worker in workers), default=None),
    }
    return [
        {"program": program, "host": host, **shared, **_said(said.get(program))} for program, host in _HOSTS.items()
    ]


def _said(row: Row | None) -> Row:
    row = row or {}
    return {"disabled": row.get("disabled", False), "disabled_reason": row.get("disabled_reason")}


async def change(tx: Transaction, program: str, disabled: bool, reason: str | None, now: float) -> None:
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


async def zones(reader: Reader, config: Config) -> set[str]:
    """Every zone that servers can be in: all hosts reach the one back end."""
    default = config.scheduler.default_zone
    return {default, *await compute_zones.zones(reader, default)}


async def check_enabled(reader: Reader) -> None:
    """Refuse (409) new volumes while an operator has disabled what would keep or place them."""
    row = await reader.fetch_one("SELECT * FROM volume_services WHERE disabled ORDER BY program LIMIT 1")
    if row is not None:
        why = f": {row['disabled_reason']}" if row["disabled_reason"] else "."
        raise Conflict(f"No volume can be made while {row['program']} is disabled{why}")


async def amounts(reader: Reader) -> list[Row]:
    """What each project has: `volumes`, `volume_gb`, `snapshots`, `snapshot_gb`."""
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
    """The disk that volumes lie on, in GiB: all of it, and what is free."""
    used = await asyncio.to_thread(shutil.disk_usage, directory)
    return round(used.total / _GIB, 2), round(used.free / _GIB, 2)
