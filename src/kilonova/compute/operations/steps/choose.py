"""The steps "choose host" and "claim" of every operation that places a server: select a host, claim its resources.

A later step that finds the host unfit goes back to "choose host".
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

from msgspec import structs

from kilonova.compute.operations.steps import hosts
from kilonova.compute.operations.steps.hosts import HostNotResponding
from kilonova.compute.servers import scheduling
from kilonova.hosts.messages.verbs import Change
from kilonova.hosts.transport import HostCallError, HostFailed
from kilonova.operations import Failed, GoBack, Operation, Step, TransientError
from kilonova.operations.definition import Action
from kilonova.placement.claims import Consumer
from kilonova.scheduler import Candidate, Diagnosis, Plan, Request, attempts, claim_first
from kilonova.scheduler.attempts import Packed
from kilonova.store import Row, Transaction

CHOOSE, CLAIM = "choose host", "claim"


def first_steps(choose: Action, claim: Action, release: Action, *, task_state: str | None = None) -> tuple[Step, ...]:
    """The first two steps of an operation's table."""
    return (
        Step(CHOOSE, choose, undo=None, why="a plan changes nothing", deadline=60, task_state=task_state),
        Step(
            CLAIM,
            claim,
            undo=release,
            deadline=30,
            transaction=True,
            undo_transaction=True,
            task_state=task_state,
        ),
    )


def claimed_host(op: Operation) -> str:
    """The host on which the operation has claimed resources."""
    host: str = op.results[CLAIM]["host"]
    return host


def tried_hosts(op: Operation) -> frozenset[str]:
    """Hosts that failed to build the server in earlier rounds of the operation."""
    return frozenset(op.note.get("tried", {}))


async def propose(op: Operation, server: Row, request: Request) -> dict[str, Any]:
    """Plan with the scheduler: the result of "choose host". Raises Failed if no host is valid."""
    found = await op.services.scheduler.plan(request, lost=op.note.get("lost", ()))
    if not found.candidates and await scheduling.others_may_leave(
        op.db, server, op.note.get("tried", {}), request.group
    ):
        raise TransientError(_refusal(op, found.diagnosis))
    return await proposal_from_plan(op, found)


async def proposal_from_plan(op: Operation, found: Plan) -> dict[str, Any]:
    """The result of "choose host" for a plan. Raises Failed if the plan has no candidate."""
    if not found.candidates:
        async with op.db.transaction() as tx:
            await _record_attempt(op, tx, found.diagnosis, None)
        fault = _fault(op.note.get("tried", {}), found.diagnosis.rejection_report())
        raise Failed(_refusal(op, found.diagnosis), fault=fault)
    return {
        "candidates": [structs.astuple(candidate) for candidate in found.candidates],
        "diagnosis": attempts.pack(found.diagnosis),
    }


def _refusal(op: Operation, diagnosis: Diagnosis) -> str:
    before, sentence = op.note.get("tried", {}), diagnosis.sentence()
    return f"{sentence}. Tried before: {_reasons(before, op.note)}" if before else sentence


async def claim_candidate(op: Operation, tx: Transaction, server: Row, consumer: Consumer) -> Candidate:
    """Claim the first candidate that still has room; others may have claimed since the plan. Raises GoBack."""
    chosen = op.results[CHOOSE]
    candidates = [Candidate(*fields) for fields in chosen["candidates"]]
    accepts = await scheduling.group_policy(tx, server)
    taken = await claim_first(tx, candidates, consumer, accepts=accepts)
    if taken is None:
        note = {"lost": [candidate.uuid for candidate in candidates], "losses": op.note.get("losses", 0) + 1}
        allowed = accepts is None or any(map(accepts, candidates))
        reason = "other claims or changes came first" if allowed else "the policy of its server group now excludes it"
        raise GoBack(CHOOSE, note=note, reason=f"{reason} on every proposed host")
    if op.epoch > 1:  # an earlier worker may have recorded a refusal and died
        await attempts.delete_refusal(tx, server["id"], op.id)
    await _record_attempt(op, tx, chosen["diagnosis"], taken.host)
    # A repeated "choose host" makes a new plan, so the other candidates need not be stored.
    del op.results[CHOOSE]
    op.host = taken.host
    return taken


async def build_guest(op: Operation, host: str, step: str, verb: Change) -> None:
    """Build the guest on the claimed host. If the host fails or does not respond, go back and try the next one."""
    try:
        await hosts.call(op, host, step, verb)
    except (HostNotResponding, HostFailed) as error:
        if error.passing:
            raise
        try_next_host(op, host, error)
    op.services.scheduler.record_build(host, True)


def try_next_host(op: Operation, host: str, error: HostCallError) -> NoReturn:
    """Go back to "choose host" without this host, at most `operations.max_build_attempts` times."""
    op.services.scheduler.record_build(host, False)
    before = {**op.note.get("tried", {}), host: error.message}
    note = {"tried": before, "public": {**op.note.get("public", {}), host: error.public}, "lost": []}
    if len(before) >= op.services.config.operations.max_build_attempts:
        count = "1 host" if len(before) == 1 else f"{len(before)} hosts"
        message = f"No valid host was found: {count} could not build the server: {_reasons(before, note)}"
        raise Failed(message, fault=_fault(before)) from error
    raise GoBack(CHOOSE, note=note, reason=error.public, fault=str(error)) from error


async def _record_attempt(op: Operation, tx: Transaction, diagnosis: Diagnosis | Packed, host: str | None) -> None:
    await attempts.record(
        tx,
        server_id=str(op.server_id),
        operation_id=op.id,
        kind=op.kind,
        diagnosis=diagnosis,
        host=host,
        lost=op.note.get("losses", 0),
    )


def _reasons(before: dict[str, str], note: dict[str, Any]) -> str:
    """Why hosts could not build the server, without names of hosts: users see this text."""
    public = note.get("public", {})
    counts = Counter(public.get(host, HostCallError.public) for host in before)
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def _fault(before: dict[str, str], account: str = "") -> str | None:
    """Details for administrators: hosts that could not build the server, and hosts that the scheduler rejected."""
    lines = [*(f"{host}: {reason}" for host, reason in before.items()), account]
    return "\n".join(filter(None, lines)) or None
