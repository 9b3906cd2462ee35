"""Whether ports on hosts that make networks carry packets: while their guest is on, and the host answers.

Nothing is kept of it. A host starts a guest only when its ports are wired, and whether guests are on and hosts answer
is known from what their agents report.
"""

from __future__ import annotations

from kilonova.http import Context
from kilonova.network.listing import Query
from kilonova.network.ports.model import Port
from kilonova.store import Reader

# Of a port `r` that is bound and up. Guests that run or are paused are on.
_IDLE = """(EXISTS (SELECT 1 FROM hypervisors h WHERE h.host = r.host_id AND h.networked)
  AND NOT EXISTS (SELECT 1 FROM servers g JOIN services v ON v.host = r.host_id AND v.program = 'nova-compute'
    WHERE g.id = r.device_id AND NOT g.deleted AND g.power_state IN (1, 3)
      AND NOT v.forced_down AND v.last_seen_at >= {since}))"""


def _since(ctx: Context) -> float:
    return float(ctx.now - ctx.services.config.hosts.down_seconds)


async def shown(ctx: Context, reader: Reader, ports: list[Port]) -> list[Port]:
    """The ports with the status they have now."""
    bound = [port.row["id"] for port in ports if port.row["host_id"] and port.row["status"] == "ACTIVE"]
    if not bound:
        return ports
    sql = f"SELECT r.id FROM ports r WHERE r.id = ANY($1) AND {_IDLE.format(since='$2')}"
    idle = {row["id"] for row in await reader.fetch(sql, bound, _since(ctx))}
    return [port._replace(row={**port.row, "status": "DOWN"}) if port.row["id"] in idle else port for port in ports]


def narrow(ctx: Context, query: Query, statuses: list[str]) -> None:
    """Only ports with one of these statuses."""
    idle = _IDLE.format(since=query.arg(_since(ctx)))
    wanted = query.arg(statuses)
    query.add(f"CASE WHEN r.status = 'ACTIVE' AND {idle} THEN 'DOWN' ELSE r.status END = ANY({wanted})")
