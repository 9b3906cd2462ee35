"""Guests on hosts beside the servers they belong to, and what hosts keep of guests in slots."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova.compute.operations.leftovers import ClearGuest, ClearSlot, ParkGuest, RestoreGuest
from kilonova.compute.servers.states import CRASHED, ERROR, HALTED, RUNNING, SAVED, SHELVED, SHUTDOWN
from kilonova.doctor.facts import Facts, Finding, named
from kilonova.hosts.messages import GuestState
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
        if server["host"] and server["id"] not in seen and (server["host"], server["id"]) not in unsure:
            yield Finding("guest missing", server["id"], f"{named(server)} is not on {server['host']}")
        move = facts.waiting.get(server["id"])
        kept = move and (move["source_host"], server["id"], move["operation_id"]) in there
        if move and not kept and (move["source_host"], server["id"]) not in unsure:
            detail = f"{named(server)} as it was before its resize is not on {move['source_host']}"
            yield Finding("guest missing", server["id"], detail)


def _leftovers(facts: Facts, *kinds: str) -> Iterator[Row]:
    return (row for row in facts.leftovers if row["kind"] in kinds)


def _wrong(server: Row | None, host: str, guest: GuestState) -> Iterator[Finding]:
    if server is None:
        yield Finding("guest without server", guest.id, f"{guest.name} on {host}")
    elif server["host"] != host:
        where = server["host"] or "no host"
        yield Finding("guest on the wrong host", guest.id, f"{guest.name} is on {host}, not {where}")
    elif server["vm_state"] != ERROR and _expected(server) != guest.power:
        recorded = _expected(server) or "unknown"
        yield Finding("guest power differs", guest.id, f"{guest.name} is {guest.power}, recorded as {recorded}")


def _expected(server: Row) -> str | None:
    return "shutdown" if server["vm_state"] == SHELVED else _POWER.get(server["power_state"])


def _kept(facts: Facts, host: str, guest: GuestState) -> Iterator[Finding]:
    """A slot bears the name of the operation that it is for."""
    move = facts.waiting.get(guest.id)
    waits = move is not None and (move["operation_id"], move["source_host"]) == (guest.slot, host)
    if not waits and guest.slot not in facts.busy:
        yield Finding("guest kept without reason", guest.id, f"{guest.name} on {host} in slot {guest.slot}")
