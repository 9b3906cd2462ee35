"""What tests of moves share: hosts that are down, and what is told of a move when it is over."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.migrations import status
from kilonova.hosts.messages import GuestState
from tests.compute.servers.support import act, hypervisors, rules
from tests.support.cloud import fault
from tests.support.whole import Whole

HOST = "OS-EXT-SRV-ATTR:host"


async def force_down(c: Whole, host: str, down: bool = True) -> None:
    body = {"host": host, "binary": "nova-compute", "forced_down": down}
    answer = await c.put("/os-services/force-down", body, as_="admin", version="2.11")
    assert answer.status == 200, answer.body


async def disable(c: Whole, host: str) -> None:
    body = {"host": host, "binary": "nova-compute"}
    assert (await c.put("/os-services/disable", body, as_="admin", version="2.11")).status == 200


async def lose(c: Whole, host: str) -> None:
    """The host answers nothing any more, and has not been heard of for long."""
    with rules(c) as sim:
        sim.add_failure(host, "*", "unreachable", None, None)
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = 0 WHERE host = $1", host)


async def find_again(c: Whole, host: str) -> None:
    with rules(c) as sim:
        sim.clear(host)


async def moved(c: Whole, server_id: str, action: str, body: Any, **options: Any) -> dict[str, Any]:
    """The server after the move was accepted and is over, whatever came of it."""
    answer = await act(c, server_id, action, body, **{"as_": "admin", "version": "2.94", **options})
    assert answer.status in (200, 202), answer.body
    return await c.settled(server_id)


async def refused(c: Whole, server_id: str, action: str, body: Any, **options: Any) -> tuple[int, str]:
    """Status and message; nothing was begun."""
    before = await c.db.fetch_value("SELECT COUNT(*) FROM operations")
    answer = await act(c, server_id, action, body, **{"as_": "admin", "version": "2.94", **options})
    assert answer.status >= 400, answer.body
    assert await c.db.fetch_value("SELECT COUNT(*) FROM operations") == before
    code, _, message = fault(answer)
    return code, message


async def migration(c: Whole, server_id: str) -> dict[str, Any]:
    """The newest one: its status, its hosts, and why it failed."""
    row = await c.db.fetch_one(f"{status.READ} WHERE m.server_id = $1 ORDER BY m.id DESC LIMIT 1", server_id)
    assert row is not None
    return {
        "status": status.status(row),
        "from": row["source_host"],
        "to": row["dest_host"],
        "why": orjson.loads(row["error"])["message"] if row["error"] else None,
    }


async def newest_action(c: Whole, server_id: str, *, as_: str = "admin") -> dict[str, Any]:
    path = f"/servers/{server_id}/os-instance-actions"
    listed = (await c.get(path, as_=as_, version="2.84")).json()["instanceActions"]
    answer = await c.get(f"{path}/{listed[0]['request_id']}", as_=as_, version="2.84")
    assert answer.status == 200, answer.body
    action: dict[str, Any] = answer.json()["instanceAction"]
    return action


async def everything(c: Whole, server_id: str) -> dict[str, Any]:
    """What a move that failed must leave as it was. Hosts that cannot be asked are asked about by their files."""
    row = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id)
    assert row is not None
    return {
        "server": {key: row[key] for key in ("vm_state", "power_state", "host", "flavor_id", "pinned_zone")},
        "shares": await c.db.fetch(_SHARES),
        "consumers": await c.db.fetch("SELECT uuid, type FROM consumers ORDER BY 1"),
        "ports": await c.db.fetch("SELECT id, host_id FROM ports WHERE device_owner = 'compute:nova' ORDER BY 1"),
        "standby": await c.db.fetch("SELECT port_id, host FROM standby_bindings ORDER BY 1, 2"),
        "guests": sorted((host, guest.id, guest.power, guest.slot) for host, guest in _guests(c)),
        "left": await c.db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL ORDER BY 1"),
    }


def _guests(c: Whole) -> list[tuple[str, GuestState]]:
    with hypervisors(c) as store:
        return store.all_guests()


_SHARES = """
SELECT a.consumer_uuid, p.name, a.resource_class, a.used FROM allocations a
JOIN resource_providers p ON p.id = a.provider_id ORDER BY 1, 2, 3
"""
