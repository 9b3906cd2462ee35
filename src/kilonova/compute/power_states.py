"""Guests that changed by themselves: servers are shown as what their hosts say they are.

A report is a hint. What it says otherwise than the records is asked of the host once more, and written only if nothing
has happened to the server since its row was read: no operation is unfinished, and the row is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from kilonova import clock, ids
from kilonova.compute.servers import states
from kilonova.hosts.messages import GuestState, Power, Report
from kilonova.hosts.transport import HostTrouble, list_guests
from kilonova.operations.requests import note
from kilonova.store import Row

if TYPE_CHECKING:
    from kilonova.services import Services

log = logging.getLogger(__name__)

_PATIENCE = 5.0


class Shown(NamedTuple):
    """`action` and `words` are for the server's history."""

    vm_state: str
    power_state: int
    action: str
    words: str


SHOWN: dict[Power, Shown] = {
    "running": Shown(states.ACTIVE, states.RUNNING, "start", "the guest was found running"),
    "shutdown": Shown(states.STOPPED, states.SHUTDOWN, "stop", "the guest was found shut down"),
    "crashed": Shown(states.STOPPED, states.CRASHED, "stop", "the guest has crashed"),
    "paused": Shown(states.PAUSED, states.HALTED, "pause", "the guest was found paused"),
    "suspended": Shown(states.SUSPENDED, states.SAVED, "suspend", "the guest was found suspended"),
}
# A server in any other state has it for a reason of its own, whatever its guest's power is.
_FOLLOWING = frozenset({states.ACTIVE, states.STOPPED, states.PAUSED, states.SUSPENDED})
# Of these the guest is not there, or not theirs any more, and their power says nothing.
_LEFT_ALONE = frozenset({states.BUILDING, states.SHELVED_OFFLOADED, states.DELETED})

_IDLE = "NOT EXISTS (SELECT 1 FROM operations o WHERE o.server_id = servers.id AND o.finished_at IS NULL)"
_ROWS = f"""
SELECT id, project_id, user_id, host, vm_state, power_state, sealed_password, updated_at, deleted, {_IDLE} AS idle
FROM servers WHERE id = ANY($1)
"""
_AGAIN = f"""
SELECT id FROM servers WHERE id = $1 AND host = $2 AND updated_at = $3 AND NOT deleted AND {_IDLE} FOR UPDATE
"""
_ATTENDED_TO = """
SELECT params FROM operations WHERE finished_at IS NULL AND run_at >= 0 AND host = $1 AND server_id IS NULL
"""


def follows(vm_state: str, power: Power) -> tuple[str, int]:
    """What a server of this state is, now that its guest is so."""
    shown = SHOWN[power]
    return shown.vm_state if vm_state in _FOLLOWING else vm_state, shown.power_state


def agrees(server: Row, power: Power) -> bool:
    """Whether the record says of the guest what is so."""
    if server["vm_state"] in _LEFT_ALONE:
        return True
    return (server["vm_state"], server["power_state"]) == follows(server["vm_state"], power)


def _is_told(server: Row, guest: GuestState) -> bool:
    """Whether the record has all that the guest has for it: also the password that it gave away."""
    known = not guest.sealed_password or guest.sealed_password == server["sealed_password"]
    return agrees(server, guest.power) and (known or server["vm_state"] in _LEFT_ALONE)


async def observe(services: Services, report: Report) -> bool:
    """Put right what idle servers of the host are shown as. Whether everything has agreed already."""
    guests = {guest.id: guest for guest in report.guests if not guest.slot}
    rows = await _rows(services, guests)
    here = {row["id"]: row for row in rows if row["host"] == report.host and not row["deleted"]}
    strangers = guests.keys() - here.keys()
    differing = {one for one, row in here.items() if not _is_told(row, guests[one])}
    busy = {row["id"] for row in rows if not row["idle"]}
    if strangers or differing:
        busy |= await _attended_to(services, report.host, strangers | differing)
    _note_unknown(services, report.host, strangers - busy)
    if wrong := differing - busy:
        await _put_right(services, report.host, {one: here[one] for one in wrong})
    return not differing and not busy and not strangers


async def _rows(services: Services, guests: Iterable[str]) -> list[Row]:
    asked = list(guests)
    return await services.db.fetch(_ROWS, asked) if asked else []


async def _attended_to(services: Services, host: str, guests: Iterable[str]) -> set[str]:
    """Those of the guests that operations which belong to no server are to clear or put back on the host."""
    waiting = [row["params"] for row in await services.db.fetch(_ATTENDED_TO, host)]
    return {guest_id for guest_id in guests if any(guest_id in params for params in waiting)}


async def _put_right(services: Services, host: str, wrong: dict[str, Row]) -> None:
    try:
        guests = await list_guests(services.hosts, host, timeout=_PATIENCE)
    except HostTrouble as trouble:
        log.info("host %s reported, and does not answer now: %s", host, trouble.message)
        return
    for guest in guests:
        row = wrong.get(guest.id)
        if row is not None and not guest.slot and not _is_told(row, guest):
            await _write(services, row, guest)


async def _write(services: Services, row: Row, guest: GuestState) -> None:
    vm_state, power_state = follows(row["vm_state"], guest.power)
    async with services.db.transaction() as tx:
        await tx.hold(f"operations of {row['id']}")
        if await tx.fetch_one(_AGAIN, row["id"], row["host"], row["updated_at"]) is None:
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
            shown = SHOWN[guest.power]
            await note(
                tx,
                action=shown.action,
                words=shown.words,
                server_id=row["id"],
                project_id=row["project_id"],
                user_id=row["user_id"],
                request_id=f"req-{ids.new_id()}",
                host=row["host"],
            )
    log.info("a guest has changed by itself", extra={"server": row["id"], "host": row["host"], "power": guest.power})


# Guests that nobody knows. Who they are is for the operator to find out: nothing is done to them.

_UNKNOWN: WeakKeyDictionary[Services, dict[str, frozenset[str]]] = WeakKeyDictionary()


def unknown(services: Services) -> dict[str, int]:
    """How many there are, by host, as far as this process was told."""
    return {host: len(guests) for host, guests in _UNKNOWN.get(services, {}).items()}


def _note_unknown(services: Services, host: str, found: set[str]) -> None:
    by_host = _UNKNOWN.setdefault(services, {})
    for guest_id in found - by_host.get(host, frozenset()):
        log.warning("a guest that belongs to no server", extra={"guest": guest_id, "host": host})
    by_host[host] = frozenset(found)
