"""The current status of ports on networked hosts: ACTIVE while the guest runs and the host responds.

The status is not stored. An agent starts a guest only after its ports are wired, and agents report which guests run.
"""

from __future__ import annotations

from msgspec import structs

from kilonova.hosts.networked import is_networked_sql, is_up_sql
from kilonova.http import Context
from kilonova.network.listing import Query
from kilonova.network.ports.model import PortDetails
from kilonova.network.ports.trunk_details import PARENT_DEVICE_SQL
from kilonova.store import Reader


def _down_since(ctx: Context) -> float:
    return float(ctx.now - ctx.services.config.hosts.down_seconds)


def _is_idle_sql(ctx: Context, since: str) -> str:
    """SQL condition: port `r`, whose stored status is ACTIVE, carries no packets."""
    runs = ctx.services.compute_status.is_running_sql(f"COALESCE({PARENT_DEVICE_SQL}, r.device_id)", "r.project_id")
    return f"({is_networked_sql('r.host_id')} AND NOT ({runs} AND {is_up_sql('r.host_id', since)}))"


async def with_current_status(ctx: Context, reader: Reader, ports: list[PortDetails]) -> list[PortDetails]:
    bound = [each.port.id for each in ports if each.port.host_id and each.port.status == "ACTIVE"]
    if not bound:
        return ports
    sql = f"SELECT r.id FROM ports r WHERE r.id = ANY($1) AND {_is_idle_sql(ctx, '$2')}"
    idle = {row["id"] for row in await reader.fetch(sql, bound, _down_since(ctx))}
    return [
        structs.replace(each, port=structs.replace(each.port, status="DOWN")) if each.port.id in idle else each
        for each in ports
    ]


def filter_by_status(ctx: Context, query: Query, statuses: list[str]) -> None:
    idle = _is_idle_sql(ctx, query.arg(_down_since(ctx)))
    wanted = query.arg(statuses)
    query.add(f"CASE WHEN r.status = 'ACTIVE' AND {idle} THEN 'DOWN' ELSE r.status END = ANY({wanted})")
