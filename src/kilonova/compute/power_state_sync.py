"""Power state sync: update servers whose guests changed state by themselves.

A report is a hint. If it differs from the database, the host is asked again, and the new state is written only if the
server's row is unchanged and no operation on the server is unfinished.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from kilonova import clock, ids
from kilonova.compute.servers import states
from kilonova.hosts.messages import GuestState, Power, Report
from kilonova.hosts.transport import HostCallError, list_guests
from kilonova.operations.control import record_notice
from kilonova.store import Row

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0


class ShownState(NamedTuple):
    """The server's states, and the instance action that records the change, with its message."""

    vm_state: str
    power_state: int
    action: str
    message: str


STATE_BY_POWER: dict[Power, ShownState] = {
    "running": ShownState(states.ACTIVE, states.RUNNING, "start", "the guest was found running"),
    "shutdown": ShownState(states.STOPPED, states.SHUTDOWN, "stop", "the guest was found shut down"),
    "crashed": ShownState(states.STOPPED, states.CRASHED, "stop", "the guest has crashed"),
    "paused": ShownState(states.PAUSED, states.HALTED, "pause", "the guest was found paused"),
    "suspended": ShownState(states.SUSPENDED, states.SAVED, "suspend", "the guest was found suspended"),
}
# Only in these states does vm_state follow the guest's power.
_POWER_DEPENDENT = frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SUSPENDED})
# Servers in these states have no guest, or no longer own it.
_IGNORED = frozenset({states.BUILDING, states.SHELVED_OFFLOADED, states.DELETED})

_IDLE = "NOT EXISTS (SELECT 1 FROM operations o WHERE o.server_id = servers.id AND o.finished_at IS NULL)"
_SERVERS = f"""
SELECT id, project_id, user_id, host, vm_state, power_state, sealed_password, updated_at, deleted, {_IDLE} AS idle
FROM servers WHERE id = ANY($1)
"""
_LOCK_IF_UNCHANGED = f"""
SELECT id FROM servers WHERE id = $1 AND host = $2 AND updated_at = $3 AND NOT deleted AND {_IDLE} FOR UPDATE
"""
_HOST_OPERATIONS = """
SELECT params FROM operations WHERE finished_at IS NULL AND run_at >= 0 AND host = $1 AND server_id IS NULL
"""


def states_for(vm_state: str, power: Power) -> tuple[str, int]:
    """The vm_state and power_state that a server gets when its guest has this power."""
    shown = STATE_BY_POWER[power]
    return shown.vm_state if vm_state in _POWER_DEPENDENT else vm_state, shown.power_state


def agrees(server: Row, power: Power) -> bool:
    """Whether the server's row matches the guest's power."""
    if server["vm_state"] in _IGNORED:
        return True
    return (server["vm_state"], server["power_state"]) == states_for(server["vm_state"], power)


def _is_recorded(server: Row, guest: GuestState) -> bool:
    """Whether the server's row has the guest's power and the password that the guest has published."""
    known = not guest.sealed_password or guest.sealed_password == server["sealed_password"]
    return agrees(server, guest.power) and (known or server["vm_state"] in _IGNORED)


async def sync(services: Services, report: Report) -> bool:
    """Update idle servers of the host. Returns whether everything agreed already."""
    guests = {guest.id: guest for guest in report.guests if not guest.slot}
    rows = await _fetch_servers(services, guests)
    here = {row["id"]: row for row in rows if row["host"] == report.host and not row["deleted"]}
    unknown = guests.keys() - here.keys()
    differing = {server_id for server_id, row in here.items() if not _is_recorded(row, guests[server_id])}
    busy = {row["id"] for row in rows if not row["idle"]}
    if unknown or differing:
        busy |= await _handled_by_operations(services, report.host, unknown | differing)
    _record_unknown(services, report.host, unknown - busy)
    if outdated := differing - busy:
        await _correct(services, report.host, {server_id: here[server_id] for server_id in outdated})
    return not differing and not busy and not unknown


async def _fetch_servers(services: Services, guests: Iterable[str]) -> list[Row]:
    server_ids = list(guests)
    return await services.db.fetch(_SERVERS, server_ids) if server_ids else []


async def _handled_by_operations(services: Services, host: str, guests: Iterable[str]) -> set[str]:
    """The guests that unfinished operations without a server, such as deferred cleanup, will change on the host."""
    waiting = [row["params"] for row in await services.db.fetch(_HOST_OPERATIONS, host)]
    return {guest_id for guest_id in guests if any(guest_id in params for params in waiting)}


async def _correct(services: Services, host: str, outdated: dict[str, Row]) -> None:
    try:
        guests = await list_guests(services.hosts, host, timeout=_TIMEOUT_SECONDS)
    except HostCallError as trouble:
        log.info("host %s sent a report but does not respond now: %s", host, trouble.message)
        return
    for guest in guests:
        row = outdated.get(guest.id)
        if row is not None and not guest.slot and not _is_recorded(row, guest):
            await _write(services, row, guest)


async def _write(services: Services, row: Row, guest: GuestState) -> None:
    vm_state, power_state = states_for(row["vm_state"], guest.power)
    async with services.db.transaction() as tx:
        await tx.lock(f"operations of {row['id']}")
        if await tx.fetch_one(_LOCK_IF_UNCHANGED, row["id"], row["host"], row["updated_at"]) is None:
            return
        await tx.execute(
            "UPDATE servers SET vm_state = $2, power_state = $3, sealed_password = $4, updated_at = $5 WHERE id = $1",
            row["id"],
            vm_state,
            power_state,
            guest.sealed_password or row["sealed_password"],
            clock.now(),
        )
        if vm_state != row["vm_state"]:
            shown = STATE_BY_POWER[guest.power]
            await record_notice(
                tx,
                action=shown.action,
                message=shown.message,
                server_id=row["id"],
                project_id=row["project_id"],
                user_id=row["user_id"],
                request_id=f"req-{ids.new_id()}",
                host=row["host"],
            )
    log.info(
        "a guest changed its power state by itself",
        extra={"server": row["id"], "host": row["host"], "power": guest.power},
    )


# Unknown guests belong to no server. They are counted for the operator and otherwise left alone.

_UNKNOWN_GUESTS: WeakKeyDictionary[Services, dict[str, frozenset[str]]] = WeakKeyDictionary()


def count_unknown_guests(services: Services) -> dict[str, int]:
    """The number of unknown guests by host, from the reports that this process received."""
    return {host: len(guests) for host, guests in _UNKNOWN_GUESTS.get(services, {}).items()}


def _record_unknown(services: Services, host: str, found: set[str]) -> None:
    by_host = _UNKNOWN_GUESTS.setdefault(services, {})
    for guest_id in found - by_host.get(host, frozenset()):
        log.warning("a guest that belongs to no server", extra={"guest": guest_id, "host": host})
    by_host[host] = frozenset(found)
