"""Guests on hosts beside the servers they belong to, and what hosts keep of guests in slots."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova.compute.operations.leftovers import ClearGuest, ClearSlot, ParkGuest, RestoreGuest
from kilonova.compute.power_states import agrees
from kilonova.compute.servers.states import CRASHED, ERROR, HALTED, RUNNING, SAVED, SHELVED, SHUTDOWN
from kilonova.doctor.facts import Facts, Finding, named
from kilonova.hosts.messages import GuestState, Power
from kilonova.store import Row

_POWER = {RUNNING: "running", SHUTDOWN: "shutdown", HALTED: "paused", SAVED: "suspended", CRASHED: "crashed"}


def findings(facts: Facts) -> Iterator[Finding]:
    if facts.guests is None:
        return
    clearings = _leftovers(facts, ClearGuest.kind, ClearSlot.kind)
    to_clear = {(row["host"], row["guest_id"], row.get("slot")) for row in clearings}
    # Whether such a guest is in its slot, nobody knows.
    unsure = {(row["host"], row["guest_id"]) for row in _leftovers(facts, RestoreGuest.kind, ParkGuest.kind)}
    there = {(host, guest.id, guest.slot or None) for host, guest in facts.guests}
    seen = {identity for _, identity, slot in there if slot is None}
    for host, guest in facts.guests:
        excused = (host, guest.id, guest.slot or None) in to_clear or (host, guest.id) in unsure
        if excused or guest.id in facts.busy:
            continue
        yield from _kept(facts, host, guest) if guest.slot else _wrong(facts.servers.get(guest.id), host, guest)
    for server in facts.idle():
        if server["vm_state"] == ERROR:
            continue
        there_or_unsure = server["id"] in seen or (server["host"], server["id"]) in unsure
        if server["host"] and server["host"] not in facts.unasked and not there_or_unsure:
            yield Finding("guest missing", server["id"], f"{named(server)} is not on {server['host']}")
        move = facts.waiting.get(server["id"])
        kept = move and (move["source_host"], server["id"], move["operation_id"]) in there
        source = move["source_host"] if move else ""
        if move and not kept and source not in facts.unasked and (source, server["id"]) not in unsure:
            detail = f"{named(server)} as it was before its resize is not on {source}"
            yield Finding("guest missing", server["id"], detail)


def _leftovers(facts: Facts, *kinds: str) -> Iterator[Row]:
    return (row for row in facts.leftovers if row["kind"] in kinds)


def _wrong(server: Row | None, host: str, guest: GuestState) -> Iterator[Finding]:
    if server is None:
        yield Finding("guest without server", guest.id, f"{guest.name} on {host}")
    elif server["host"] != host:
        where = server["host"] or "no host"
        yield Finding("guest on the wrong host", guest.id, f"{guest.name} is on {host}, not {where}")
    elif server["vm_state"] != ERROR and not _is_expected(server, guest.power):
        recorded = _POWER.get(server["power_state"], "unknown")
        yield Finding("guest power differs", guest.id, f"{guest.name} is {guest.power}, recorded as {recorded}")


def _is_expected(server: Row, power: Power) -> bool:
    return power == "shutdown" if server["vm_state"] == SHELVED else agrees(server, power)


def _kept(facts: Facts, host: str, guest: GuestState) -> Iterator[Finding]:
    """A slot bears the name of the operation that it is for."""
    move = facts.waiting.get(guest.id)
    waits = move is not None and (move["operation_id"], move["source_host"]) == (guest.slot, host)
    if not waits and guest.slot not in facts.busy:
        yield Finding("guest kept without reason", guest.id, f"{guest.name} on {host} in slot {guest.slot}")
