"""Facts about compute that other services show. They get this object instead of reading compute's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kilonova.compute.servers import states
from kilonova.compute.zones import model as zones
from kilonova.hosts.heartbeat import is_up
from kilonova.hosts.registry import CONDUCTOR
from kilonova.hosts.service import Service

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.store import Database


class WorkerStatus(NamedTuple):
    """`up`: at least one worker process is up. `last_seen_at`: its latest report, None without any worker."""

    up: bool
    last_seen_at: float | None


class ComputeStatus:
    def __init__(self, db: Database, config: Config) -> None:
        self._db = db
        self._config = config

    @staticmethod
    def is_running_sql(server_id: str, project_id: str) -> str:
        """SQL condition for queries of other tables: the guest of the project's server runs or is paused."""
        return (
            f"EXISTS (SELECT 1 FROM servers s WHERE s.id = {server_id} AND s.project_id = {project_id} "
            f"AND NOT s.deleted AND s.power_state IN ({states.RUNNING}, {states.HALTED}))"
        )

    async def works_on_host(self, operation_id: str, host: str) -> bool:
        """Whether the operation is unfinished, and the host is the one that it claimed or that of its server."""
        sql = (
            "SELECT 1 FROM operations o LEFT JOIN servers s ON s.id = o.server_id"
            " WHERE o.id = $1 AND o.finished_at IS NULL AND (o.host = $2 OR s.host = $2)"
        )
        return await self._db.fetch_value(sql, operation_id, host) is not None

    async def availability_zones(self) -> set[str]:
        """The default zone, and every zone with a compute host."""
        default = self._config.scheduler.default_zone
        return {default, *await zones.zone_names(self._db, default)}

    async def workers(self, now: float) -> WorkerStatus:
        workers = Service.decode_all(await self._db.fetch("SELECT * FROM services WHERE program = $1", CONDUCTOR))
        return WorkerStatus(
            up=any(is_up(worker, now, self._config.hosts.down_seconds) for worker in workers),
            last_seen_at=max((worker.last_seen_at for worker in workers), default=None),
        )
