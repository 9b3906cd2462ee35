"""Operations that stand still, what they left behind for hosts, and servers in a state that only they lead out of."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova import clock
from kilonova.compute.servers.states import BUILDING, ERROR, RESIZED, SHELVED_OFFLOADED
from kilonova.doctor.facts import LEFTOVERS, Facts, Finding, named
from kilonova.hosts.transport import HostUnreachable
from kilonova.operations import views
from kilonova.operations.views import STUCK_SECONDS, Summary
from kilonova.store import Reader, Row


async def findings(db: Reader, facts: Facts) -> list[Finding]:
    stuck = await views.stuck(db)
    return [
        *(_stuck(row) for row in stuck if row.kind not in LEFTOVERS),
        *_left_behind(facts, {row.id: row for row in stuck}),
        *_wrong_states(facts),
        *_undecided(facts),
    ]


def _stuck(row: Summary) -> Finding:
    return Finding("operation stuck", row.id, f"{row.kind} is {row.state} at step '{row.step}': {row.reason}")


def _left_behind(facts: Facts, stuck: dict[str, Summary]) -> Iterator[Finding]:
    """To wait for a host that is down is what they are for."""
    overdue = clock.now() - STUCK_SECONDS
    for row in facts.leftovers:
        if row["finished_at"] is not None:
            continue
        late = row["host"] in facts.up and row["created_at"] < overdue
        known = stuck.get(row["id"])
        if late or (known is not None and row["trouble"] != HostUnreachable.public):
            reason = known.reason if known else "it takes long"
            yield Finding(
                "leftover on a host", row["id"], f"{row['kind']} {row['guest_id']} on {row['host']}: {reason}"
            )


def _wrong_states(facts: Facts) -> Iterator[Finding]:
    for server in facts.idle():
        if server["vm_state"] == BUILDING:
            yield Finding("transient state without operation", server["id"], f"{named(server)} is building")
        if server["vm_state"] == SHELVED_OFFLOADED and server["host"]:
            yield Finding("offloaded server on a host", server["id"], f"{named(server)} is on {server['host']}")


def _undecided(facts: Facts) -> Iterator[Finding]:
    """A server waits for a decision about its resize, or has none to wait for."""
    for server in facts.idle():
        waits = server["id"] in facts.waiting
        if (server["vm_state"] == RESIZED) != waits and not (waits and server["vm_state"] == ERROR):
            yield Finding("resize undecided", server["id"], _undecided_in_words(server, waits))


def _undecided_in_words(server: Row, waits: bool) -> str:
    has = "a resize that waits" if waits else "no resize that waits"
    return f"{named(server)} is {server['vm_state']} and has {has} to be confirmed"
