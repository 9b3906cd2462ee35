"""Checks for stuck operations, overdue deferred cleanup, and servers in transient states without an operation."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova import clock
from kilonova.compute.servers.states import BUILDING, RESIZED, SHELVED_OFFLOADED
from kilonova.doctor.facts import CLEANUP_KINDS, Facts, Finding
from kilonova.hosts.transport import HostUnreachable
from kilonova.operations import views
from kilonova.operations.views import STUCK_SECONDS, Summary
from kilonova.store import Reader


async def findings(db: Reader, facts: Facts) -> list[Finding]:
    stuck = await views.find_stuck(db)
    return [
        *(_stuck(row) for row in stuck if row.kind not in CLEANUP_KINDS),
        *_overdue_cleanups(facts, {row.id: row for row in stuck}),
        *_wrong_states(facts),
        *_undecided_resizes(facts),
    ]


def _stuck(row: Summary) -> Finding:
    return Finding("operation stuck", row.id, f"{row.kind} is {row.state} at step '{row.step}': {row.reason}")


def _overdue_cleanups(facts: Facts, stuck: dict[str, Summary]) -> Iterator[Finding]:
    """Cleanup of a host that is down is not overdue: it waits for the host."""
    overdue = clock.now() - STUCK_SECONDS
    for one in facts.cleanups:
        if one.finished_at is not None:
            continue
        late = one.host in facts.up and one.created_at < overdue
        known = stuck.get(one.id)
        if late or (known is not None and one.trouble != HostUnreachable.public):
            reason = known.reason if known else "overdue"
            yield Finding("cleanup overdue", one.id, f"{one.kind} {one.guest_id} on {one.host}: {reason}")


def _wrong_states(facts: Facts) -> Iterator[Finding]:
    for server in facts.idle_servers():
        if server.vm_state == BUILDING:
            yield Finding("transient state without operation", server.id, f"{server.label} is building")
        if server.vm_state == SHELVED_OFFLOADED and server.host:
            yield Finding("offloaded server on a host", server.id, f"{server.label} is on {server.host}")


def _undecided_resizes(facts: Facts) -> Iterator[Finding]:
    """A server is VERIFY_RESIZE if and only if it has a resize that is neither confirmed nor reverted."""
    for server in facts.idle_servers():
        waits = server.id in facts.unconfirmed_resizes
        if (server.vm_state == RESIZED) != waits:
            detail = f"{server.label} is {server.vm_state} and has {'an' if waits else 'no'} unconfirmed resize"
            yield Finding("resize undecided", server.id, detail)
