"""Usage audits: the servers that each host had in a month. They are counted on request, so none can be missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from kilonova.compute.api import api
from kilonova.hosts.registry import COMPUTE
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.store import Reader

RULE = "os_compute_api:os-instance-usage-audit-log:"
PATH = "/os-instance_usage_audit_log"

# Deleted servers keep their last host.
_INSTANCES = """
SELECT host, COUNT(*) AS instances FROM servers
WHERE host IS NOT NULL AND launched_at < $2 AND (terminated_at IS NULL OR terminated_at >= $1) GROUP BY host
"""
# Nova's words.
_ALL_DONE = "ALL hosts done. 0 errors."


class Period(NamedTuple):
    beginning: datetime
    ending: datetime


@api.route("GET", PATH, policy=RULE + "list")
async def index(ctx: Context) -> Response:
    """Show the usage audit of the last complete month."""
    return Response({"instance_usage_audit_logs": await audit(ctx.db, last_month_before(ctx.now), ctx.now)})


@api.route("GET", PATH + "/{before}", policy=RULE + "show")
async def show(ctx: Context, before: str) -> Response:
    """Show the usage audit of the last complete month before a time."""
    return Response({"instance_usage_audit_log": await audit(ctx.db, _parse_period(before), ctx.now)})


def _parse_period(text: str) -> Period:
    form = "%Y-%m-%d %H:%M:%S.%f" if "." in text else "%Y-%m-%d %H:%M:%S"
    try:
        return last_month_before(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        raise BadRequest(f"Invalid timestamp for date {text[:80]}") from None


def last_month_before(moment: float) -> Period:
    """The last calendar month that ended before this time."""
    ending = datetime.fromtimestamp(moment, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Period((ending - timedelta(days=1)).replace(day=1), ending)


async def audit(reader: Reader, period: Period, now: float) -> dict[str, object]:
    """Audit all hosts that existed in the period, or that have servers of that time now.

    A period that has not ended has no audits yet.
    """
    begun, ended = (moment.timestamp() for moment in period)
    rows = await reader.fetch("SELECT host, created_at FROM services WHERE program = $1 ORDER BY host", COMPUTE)
    counts = {row["host"]: row["instances"] for row in await reader.fetch(_INSTANCES, begun, ended)}
    hosts = [row["host"] for row in rows if row["created_at"] < ended or row["host"] in counts]
    done = hosts if ended <= now else []
    missing = [] if ended <= now else hosts
    return {
        "period_beginning": _shown(period.beginning),
        "period_ending": _shown(period.ending),
        "num_hosts": len(hosts),
        "num_hosts_done": len(done),
        "num_hosts_running": 0,
        "num_hosts_not_run": len(missing),
        "hosts_not_run": missing,
        "total_instances": sum(counts.get(host, 0) for host in done),
        "total_errors": 0,
        "overall_status": f"{len(done)} of {len(hosts)} hosts done. 0 errors." if missing else _ALL_DONE,
        "log": {host: _entry(host, counts.get(host, 0)) for host in done},
    }


def _entry(host: str, instances: int) -> dict[str, object]:
    message = f"Instance usage audit ran for host {host}, {instances} instances."
    return {"state": "DONE", "instances": instances, "errors": 0, "message": message}


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")
