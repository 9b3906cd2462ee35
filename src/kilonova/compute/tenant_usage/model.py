"""Servers in the time they were there, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from kilonova import clock
from kilonova.store import Reader, Row

HOUR = 3600.0

# By project, so that the servers of one come together, whatever page they are on.
_SERVERS = """
SELECT id, project_id, name, flavor, vm_state, deleted, launched_at, terminated_at FROM servers
WHERE launched_at < $2 AND (terminated_at IS NULL OR terminated_at >= $1)
    AND (CAST($3 AS TEXT) IS NULL OR project_id = $3) AND (project_id, id) > (CAST($4 AS TEXT), CAST($5 AS TEXT))
ORDER BY project_id, id LIMIT $6
"""


@dataclass(frozen=True)
class Period:
    start: float
    stop: float

    def hours(self, row: Row, now: float) -> float:
        """For how long the server was there in it. What is yet to come does not count."""
        ended = min(row["terminated_at"] or now, self.stop)
        return float(max(0.0, ended - max(row["launched_at"], self.start)) / HOUR)


async def servers(reader: Reader, period: Period, project_id: str | None, marker: Row | None, limit: int) -> list[Row]:
    """A page of those that were there, after the marker."""
    after = (marker["project_id"], marker["id"]) if marker else ("", "")
    return await reader.fetch(_SERVERS, period.start, period.stop, project_id, *after, limit)


async def marked(reader: Reader, server_id: str) -> Row | None:
    """Deleted servers too, for their usage is told as well."""
    return await reader.fetch_one("SELECT id, project_id FROM servers WHERE id = $1", server_id)


def usage(rows: Sequence[Row], period: Period, now: float, *, detailed: bool) -> dict[str, Any]:
    """What the servers, all of one project, come to."""
    each = [_server(row, period, now) for row in rows]
    shown: dict[str, Any] = {
        "tenant_id": rows[0]["project_id"],
        "total_hours": sum(one["hours"] for one in each),
        "total_vcpus_usage": sum(one["hours"] * one["vcpus"] for one in each),
        "total_memory_mb_usage": sum(one["hours"] * one["memory_mb"] for one in each),
        "total_local_gb_usage": sum(one["hours"] * one["local_gb"] for one in each),
        "start": clock.iso_micro(period.start),
        "stop": clock.iso_micro(period.stop),
    }
    return {**shown, "server_usages": each} if detailed else shown


def _server(row: Row, period: Period, now: float) -> dict[str, Any]:
    flavor = orjson.loads(row["flavor"])
    ended = row["terminated_at"]
    return {
        "instance_id": row["id"],
        "name": row["name"],
        "tenant_id": row["project_id"],
        "flavor": flavor["name"],
        "hours": period.hours(row, now),
        "vcpus": flavor["vcpus"],
        "memory_mb": flavor["ram"],
        "local_gb": flavor["disk"] + flavor["ephemeral"],
        "started_at": clock.iso_micro(row["launched_at"]),
        "ended_at": clock.iso_micro(ended) if ended else None,
        "uptime": int((ended or now) - row["launched_at"]),
        "state": "terminated" if row["deleted"] else row["vm_state"],
    }
