"""Power state sync: update servers whose guests changed state by themselves.

A report is a hint. If it differs from the database, the host is asked again, and the new state is written only if the
server's row is unchanged and no operation on the server is unfinished.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from kilonova import ids
from kilonova.compute.servers import model, states
from kilonova.hosts.messages import GuestState, Power, Report
from kilonova.hosts.transport import HostCallError, list_guests
from kilonova.operations.control import record_notice
from kilonova.store.records import Record

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
# In other states, servers have no guest, or no longer own it.
_FOLLOWS = states.CHANGES["power state sync"].follows

_IDLE = "NOT EXISTS (SELECT 1 FROM operations o WHERE o.server_id = servers.id AND o.finished_at IS NULL)"
_SERVERS = f"""
SELECT id, project_id, user_id, host, vm_state, power_state, sealed_password, updated_at, deleted, {_IDLE} AS idle
FROM servers WHERE id = ANY($1)
"""


class ReportedServer(Record, frozen=True):
    table: ClassVar[str] = "servers"

    id: str
    project_id: str
    user_id: str
    host: str | None
    vm_state: str
    power_state: int
    sealed_password: str | None
    updated_at: float
    deleted: bool


_LOCK_IF_UNCHANGED = f"""
SELECT id FROM servers WHERE id = $1 AND host = $2 AND updated_at = $3 AND NOT deleted AND {_IDLE} FOR UPDATE
"""
_HOST_OPERATIONS = """
SELECT params FROM operations WHERE finished_at IS NULL AND run_at >= 0 AND host = $1 AND server_id IS NULL
"""


def states_for(vm_state: str, power: Power) -> tuple[str, int]:
    """The vm_state and power_state that a server gets when its guest has this power."""
    shown = STATE_BY_POWER[power]
    return shown.vm_state if shown.vm_state in _FOLLOWS.get(vm_state, ()) else vm_state, shown.power_state


def agrees(vm_state: str, power_state: int, power: Power) -> bool:
    """Whether the states of a server match the guest's power."""
    return vm_state not in _FOLLOWS or (vm_state, power_state) == states_for(vm_state, power)


def _is_recorded(server: ReportedServer, guest: GuestState) -> bool:
    """Whether the server's row has the guest's power and the password that the guest has published."""
    known = not guest.sealed_password or guest.sealed_password == server.sealed_password
    agreed = agrees(server.vm_state, server.power_state, guest.power)
    return agreed and (known or server.vm_state not in _FOLLOWS)


async def sync(services: Services, report: Report) -> bool:
    """Update idle servers of the host. Returns whether everything agreed already."""
    guests = {guest.id: guest for guest in report.guests if not guest.slot}
    rows = await services.db.fetch(_SERVERS, list(guests)) if guests else []
    servers = ReportedServer.decode_all(rows)
    here = {server.id: server for server in servers if server.host == report.host and not server.deleted}
    unknown = guests.keys() - here.keys()
    differing = {server_id for server_id, server in here.items() if not _is_recorded(server, guests[server_id])}
    busy = {row["id"] for row in rows if not row["idle"]}
    if unknown or differing:
        busy |= await _handled_by_operations(services, report.host, unknown | differing)
    _record_unknown(services, report.host, unknown - busy)
    if outdated := differing - busy:
        await _correct(services, report.host, {server_id: here[server_id] for server_id in outdated})
    return not differing and not busy and not unknown


async def _handled_by_operations(services: Services, host: str, guests: Iterable[str]) -> set[str]:
    """The guests that unfinished operations without a server, such as deferred cleanup, will change on the host."""
    waiting = [row["params"] for row in await services.db.fetch(_HOST_OPERATIONS, host)]
    return {guest_id for guest_id in guests if any(guest_id in params for params in waiting)}


async def _correct(services: Services, host: str, outdated: dict[str, ReportedServer]) -> None:
    try:
        guests = await list_guests(services.hosts, host, timeout=_TIMEOUT_SECONDS)
    except HostCallError as trouble:
        log.info("host %s sent a report but does not respond now: %s", host, trouble.message)
        return
    for guest in guests:
        server = outdated.get(guest.id)
        if server is not None and not guest.slot and not _is_recorded(server, guest):
            await _write(services, server, guest)


async def _write(services: Services, server: ReportedServer, guest: GuestState) -> None:
    vm_state, power_state = states_for(server.vm_state, guest.power)
    async with services.db.transaction() as tx:
        await tx.lock(f"operations of {server.id}")
        if await tx.fetch_one(_LOCK_IF_UNCHANGED, server.id, server.host, server.updated_at) is None:
            return
        await model.record_guest(tx, server.id, vm_state, power_state, guest.sealed_password or server.sealed_password)
        if vm_state != server.vm_state:
            shown = STATE_BY_POWER[guest.power]
            await record_notice(
                tx,
                action=shown.action,
                message=shown.message,
                server_id=server.id,
                project_id=server.project_id,
                user_id=server.user_id,
                request_id=f"req-{ids.new_id()}",
                host=server.host,
            )
    log.info(
        "a guest changed its power state by itself",
        extra={"server": server.id, "host": server.host, "power": guest.power},
    )


# Unknown guests belong to no server. They are counted for the operator and otherwise left alone.


def count_unknown_guests(services: Services) -> dict[str, int]:
    """The number of unknown guests by host, from the reports that this process received."""
    return {host: len(guests) for host, guests in services.unknown_guests.items()}


def _record_unknown(services: Services, host: str, found: set[str]) -> None:
    for guest_id in found - services.unknown_guests.get(host, frozenset()):
        log.warning("a guest that belongs to no server", extra={"guest": guest_id, "host": host})
    services.unknown_guests[host] = frozenset(found)
