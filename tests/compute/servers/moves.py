"""Helpers for tests of moves: hosts that are down, running and refused actions, and the state after a move."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute.migrations import status
from kilonova.hosts.messages import GuestState
from tests.compute.servers.support import act, rules, sim_store
from tests.support.cloud import fault
from tests.support.full_cloud import FullCloud

HOST = "OS-EXT-SRV-ATTR:host"


async def force_down(c: FullCloud, host: str, down: bool = True) -> None:
    body = {"host": host, "binary": "nova-compute", "forced_down": down}
    answer = await c.put("/os-services/force-down", body, as_="admin", version="2.11")
    assert answer.status == 200, answer.body


async def disable_host(c: FullCloud, host: str) -> None:
    body = {"host": host, "binary": "nova-compute"}
    assert (await c.put("/os-services/disable", body, as_="admin", version="2.11")).status == 200


async def make_unreachable(c: FullCloud, host: str) -> None:
    """The host does not respond any more, and its last heartbeat is old."""
    with rules(c) as sim:
        sim.add_failure(host, "*", "unreachable", None, None)
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = 0 WHERE host = $1", host)


async def make_reachable(c: FullCloud, host: str) -> None:
    with rules(c) as sim:
        sim.clear(host)


async def run_move(c: FullCloud, server_id: str, action: str, body: Any, **options: Any) -> dict[str, Any]:
    """Run an action, as an administrator by default. Returns the server at its end, also after a failure."""
    answer = await act(c, server_id, action, body, **{"as_": "admin", "version": "2.94", **options})
    assert answer.status in (200, 202), answer.body
    return await c.wait_until_settled(server_id)


async def action_refusal(c: FullCloud, server_id: str, action: str, body: Any, **options: Any) -> tuple[int, str]:
    """Status and message of an action that is refused and begins no operation."""
    before = await c.db.fetch_value("SELECT COUNT(*) FROM operations")
    answer = await act(c, server_id, action, body, **{"as_": "admin", "version": "2.94", **options})
    assert answer.status >= 400, answer.body
    assert await c.db.fetch_value("SELECT COUNT(*) FROM operations") == before
    code, _, message = fault(answer)
    return code, message


async def newest_migration(c: FullCloud, server_id: str) -> dict[str, Any]:
    """Status, hosts and error message of the server's newest migration."""
    row = await c.db.fetch_one(f"{status.SELECT} WHERE m.server_id = $1 ORDER BY m.id DESC LIMIT 1", server_id)
    assert row is not None
    return {
        "status": status.status(status.decode(row)),
        "from": row["source_host"],
        "to": row["dest_host"],
        "error": orjson.loads(row["error"])["message"] if row["error"] else None,
    }


async def newest_action(c: FullCloud, server_id: str, *, as_: str = "admin") -> dict[str, Any]:
    path = f"/servers/{server_id}/os-instance-actions"
    listed = (await c.get(path, as_=as_, version="2.84")).json()["instanceActions"]
    answer = await c.get(f"{path}/{listed[0]['request_id']}", as_=as_, version="2.84")
    assert answer.status == 200, answer.body
    action: dict[str, Any] = answer.json()["instanceAction"]
    return action


async def dump_server(c: FullCloud, server_id: str) -> dict[str, Any]:
    """All that a failed move must leave unchanged. Guests are read from the simulator's file: hosts may be down."""
    row = await c.db.fetch_one("SELECT * FROM servers WHERE id = $1", server_id)
    assert row is not None
    return {
        "server": {key: row[key] for key in ("vm_state", "power_state", "host", "flavor_id", "pinned_zone")},
        "allocations": await c.db.fetch(_ALLOCATIONS),
        "consumers": await c.db.fetch("SELECT uuid, type FROM consumers ORDER BY 1"),
        "ports": await c.db.fetch("SELECT id, host_id FROM ports WHERE device_owner = 'compute:nova' ORDER BY 1"),
        "standby_bindings": await c.db.fetch("SELECT port_id, host FROM standby_bindings ORDER BY 1, 2"),
        "guests": sorted((host, guest.id, guest.power, guest.slot) for host, guest in _guests(c)),
        "unfinished": await c.db.fetch("SELECT kind FROM operations WHERE finished_at IS NULL ORDER BY 1"),
    }


def _guests(c: FullCloud) -> list[tuple[str, GuestState]]:
    with sim_store(c) as store:
        return store.all_guests()


_ALLOCATIONS = """
SELECT a.consumer_uuid, p.name, a.resource_class, a.used FROM allocations a
JOIN resource_providers p ON p.id = a.provider_id ORDER BY 1, 2, 3
"""
