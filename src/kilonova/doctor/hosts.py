"""Checks guests on hosts, also those in slots, against their servers."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova.compute.operations.deferred_cleanup import CleanUpGuest, CleanUpSlot, ParkGuest, RestoreGuest
from kilonova.compute.power_state_sync import agrees
from kilonova.compute.servers.states import CRASHED, ERROR, HALTED, RUNNING, SAVED, SHELVED, SHUTDOWN
from kilonova.doctor.facts import CheckedServer, Cleanup, Facts, Finding
from kilonova.hosts.messages import GuestState, Power

_POWER = {RUNNING: "running", SHUTDOWN: "shutdown", HALTED: "paused", SAVED: "suspended", CRASHED: "crashed"}


def findings(facts: Facts) -> Iterator[Finding]:
    if facts.guests is None:
        return
    removals = _cleanups(facts, CleanUpGuest.kind, CleanUpSlot.kind)
    to_remove = {(one.host, one.guest_id, one.slot) for one in removals}
    # These operations move a guest into or out of its slot, so it may be in either place.
    uncertain = {(one.host, one.guest_id) for one in _cleanups(facts, RestoreGuest.kind, ParkGuest.kind)}
    found = {(host, guest.id, guest.slot or None) for host, guest in facts.guests}
    outside_slots = {identity for _, identity, slot in found if slot is None}
    for host, guest in facts.guests:
        is_expected = (host, guest.id, guest.slot or None) in to_remove or (host, guest.id) in uncertain
        if is_expected or guest.id in facts.busy:
            continue
        yield from (_check_slot if guest.slot else _check_guest)(facts, host, guest)
    for server in facts.idle_servers():
        if server.vm_state == ERROR:
            continue
        may_exist = server.id in outside_slots or (server.host, server.id) in uncertain
        if server.host and server.host not in facts.unreachable_hosts and not may_exist:
            yield Finding("guest missing", server.id, f"{server.label} is not on {server.host}")
        move = facts.unconfirmed_resizes.get(server.id)
        kept = move and (move.source_host, server.id, move.operation_id) in found
        source = move.source_host if move else ""
        if move and not kept and source not in facts.unreachable_hosts and (source, server.id) not in uncertain:
            detail = f"{server.label} as it was before its resize is not on {source}"
            yield Finding("guest missing", server.id, detail)


def _cleanups(facts: Facts, *kinds: str) -> Iterator[Cleanup]:
    return (cleanup for cleanup in facts.cleanups if cleanup.kind in kinds)


def _check_guest(facts: Facts, host: str, guest: GuestState) -> Iterator[Finding]:
    server = facts.servers.get(guest.id)
    if server is None:
        yield Finding("guest without server", guest.id, f"{guest.name} on {host}")
    elif server.host != host:
        where = server.host or "no host"
        yield Finding("guest on the wrong host", guest.id, f"{guest.name} is on {host}, not {where}")
    elif server.vm_state != ERROR and not _is_expected(server, guest.power):
        recorded = _POWER.get(server.power_state, "unknown")
        yield Finding("guest power differs", guest.id, f"{guest.name} is {guest.power}, recorded as {recorded}")


def _is_expected(server: CheckedServer, power: Power) -> bool:
    return power == "shutdown" if server.vm_state == SHELVED else agrees(server.vm_state, server.power_state, power)


def _check_slot(facts: Facts, host: str, guest: GuestState) -> Iterator[Finding]:
    """The name of a slot is the id of its operation."""
    move = facts.unconfirmed_resizes.get(guest.id)
    is_needed = move is not None and (move.operation_id, move.source_host) == (guest.slot, host)
    if not is_needed and guest.slot not in facts.busy:
        yield Finding("guest kept without reason", guest.id, f"{guest.name} on {host} in slot {guest.slot}")
