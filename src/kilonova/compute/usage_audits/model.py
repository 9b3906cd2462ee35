"""Audits by month, counted from the servers themselves whenever somebody asks: none is missed, none goes wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from kilonova.hosts.registry import COMPUTE
from kilonova.store import Reader

# Deleted servers keep the host that they were last on.
_INSTANCES = """
SELECT host, COUNT(*) AS instances FROM servers
WHERE host IS NOT NULL AND launched_at < $2 AND (terminated_at IS NULL OR terminated_at >= $1) GROUP BY host
"""


class Period(NamedTuple):
    beginning: datetime
    ending: datetime


def last_before(moment: float) -> Period:
    """The last month that was over by then."""
    ending = datetime.fromtimestamp(moment, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Period((ending - timedelta(days=1)).replace(day=1), ending)


async def audit(reader: Reader, period: Period, now: float) -> dict[str, Any]:
    """Hosts that came after the period have no audit of it, unless servers from then have moved there since.

    A period that is not over yet has none at all.
    """
    begun, ended = (moment.timestamp() for moment in period)
    rows = await reader.fetch("SELECT host, created_at FROM services WHERE program = $1 ORDER BY host", COMPUTE)
    counts = {row["host"]: row["instances"] for row in await reader.fetch(_INSTANCES, begun, ended)}
    done = [row["host"] for row in rows if ended <= now and (row["created_at"] < ended or row["host"] in counts)]
    log = {host: _entry(host, counts.get(host, 0)) for host in done}
    missing = [row["host"] for row in rows if row["host"] not in log]
    return {
        "period_beginning": _shown(period.beginning),
        "period_ending": _shown(period.ending),
        "num_hosts": len(rows),
        "num_hosts_done": len(done),
        "num_hosts_running": 0,
        "num_hosts_not_run": len(missing),
        "hosts_not_run": missing,
        "total_instances": sum(entry["instances"] for entry in log.values()),
        "total_errors": 0,
        "overall_status": f"{len(done)} of {len(rows)} hosts done. 0 errors.",
        "log": log,
    }


def _entry(host: str, instances: int) -> dict[str, Any]:
    message = f"Instance usage audit ran for host {host}, {instances} instances."
    return {"state": "DONE", "instances": instances, "errors": 0, "message": message}


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
