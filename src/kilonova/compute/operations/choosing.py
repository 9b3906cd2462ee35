"""Choosing a host and taking a share of it: the first steps of everything that puts a server on a host.

The steps are called "choose host" and "claim" in every operation. Whoever finds a host unfit goes back to the first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

from msgspec import structs

from kilonova.compute.operations import silence
from kilonova.compute.operations.silence import HostSilent
from kilonova.compute.servers import placing
from kilonova.hosts.messages import Change
from kilonova.hosts.transport import HostFailed, HostTrouble
from kilonova.operations import Failed, GoBack, Operation, Passing, Step
from kilonova.operations.table import Action
from kilonova.placement.claims import Consumer
from kilonova.scheduler import Candidate, Diagnosis, Plan, Request, attempts, claim_first
from kilonova.scheduler.attempts import Packed
from kilonova.store import Row, Transaction

CHOOSE, CLAIM = "choose host", "claim"


def first_steps(choose: Action, claim: Action, give_back: Action, *, task_state: str | None = None) -> tuple[Step, ...]:
    """The head of a table: a host is chosen, and a share of it claimed."""
    return (
        Step(CHOOSE, choose, undo=None, why="a plan changes nothing", deadline=60, task_state=task_state),
        Step(
            CLAIM,
            claim,
            undo=give_back,
            deadline=30,
            transaction=True,
            undo_transaction=True,
            task_state=task_state,
        ),
    )


def claimed(op: Operation) -> str:
    """The host that the operation has a share of."""
    host: str = op.results[CLAIM]["host"]
    return host


def tried(op: Operation) -> frozenset[str]:
    """Hosts that could not have the server, in earlier rounds of the operation."""
    return frozenset(op.note.get("tried", {}))


async def plan(op: Operation, server: Row, request: Request) -> dict[str, Any]:
    """The result of "choose host". Raises Failed where no host is valid."""
    found = await op.services.scheduler.plan(request, lost=op.note.get("lost", ()))
    if not found.candidates and await placing.others_may_leave(op.db, server, op.note.get("tried", {}), request.group):
        raise Passing(_refusal(op, found.diagnosis))
    return await proposal(op, found)


async def proposal(op: Operation, found: Plan) -> dict[str, Any]:
    """The same from a plan that is made."""
    if not found.candidates:
        async with op.db.transaction() as tx:
            await _keep(op, tx, found.diagnosis, None)
        fault = _fault(op.note.get("tried", {}), found.diagnosis.account())
        raise Failed(_refusal(op, found.diagnosis), fault=fault)
    return {
        "candidates": [structs.astuple(candidate) for candidate in found.candidates],
        "diagnosis": attempts.pack(found.diagnosis),
    }


def _refusal(op: Operation, diagnosis: Diagnosis) -> str:
    before, sentence = op.note.get("tried", {}), diagnosis.sentence()
    return f"{sentence}. Tried before: {_reasons(before, op.note)}" if before else sentence


async def take(op: Operation, tx: Transaction, server: Row, consumer: Consumer) -> Candidate:
    """The first candidate that has room is claimed; the plan may be older than other claims. Raises GoBack."""
    chosen = op.results[CHOOSE]
    candidates = [Candidate(*fields) for fields in chosen["candidates"]]
    accepts = await placing.group_policy(tx, server)
    taken = await claim_first(tx, candidates, consumer, accepts=accepts)
    if taken is None:
        note = {"lost": [candidate.uuid for candidate in candidates], "losses": op.note.get("losses", 0) + 1}
        obedient = accepts is None or any(map(accepts, candidates))
        reason = "others were faster, or changed it," if obedient else "its server group now rules otherwise"
        raise GoBack(CHOOSE, note=note, reason=f"{reason} on every proposed host")
    if op.epoch > 1:  # another worker may have died between a refusal and its end
        await attempts.forget_refusal(tx, server["id"], op.id)
    await _keep(op, tx, chosen["diagnosis"], taken.host)
    # Nobody needs the rest of the plan any more; whoever comes back here makes a new one.
    del op.results[CHOOSE]
    op.host = taken.host
    return taken


async def build(op: Operation, host: str, step: str, verb: Change) -> None:
    """Have the claimed host build the guest. One that cannot, or is silent, is left for the next."""
    try:
        await silence.insist(op, host, step, verb)
    except (HostSilent, HostFailed) as error:
        if error.passing:
            raise
        next_host(op, host, error)
    op.services.scheduler.built(host, True)


def next_host(op: Operation, host: str, error: HostTrouble) -> NoReturn:
    """The host could not have the server: leave it for another one, as many as are configured."""
    op.services.scheduler.built(host, False)
    before = {**op.note.get("tried", {}), host: error.message}
    note = {"tried": before, "public": {**op.note.get("public", {}), host: error.public}, "lost": []}
    if len(before) >= op.services.config.operations.boot_hosts:
        hosts = "1 host" if len(before) == 1 else f"{len(before)} hosts"
        message = f"No valid host was found: {hosts} could not build the server: {_reasons(before, note)}"
        raise Failed(message, fault=_fault(before)) from error
    raise GoBack(CHOOSE, note=note, reason=error.public, fault=str(error)) from error


async def _keep(op: Operation, tx: Transaction, diagnosis: Diagnosis | Packed, host: str | None) -> None:
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
    """Why hosts could not build the server; which hosts they were, and in what words, is not for everybody."""
    public = note.get("public", {})
    counts = Counter(public.get(host, HostTrouble.public) for host in before)
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def _fault(before: dict[str, str], account: str = "") -> str | None:
    """What a failure keeps for administrators: which hosts could not build the server, and who was not even asked."""
    lines = [*(f"{host}: {reason}" for host, reason in before.items()), account]
    return "\n".join(filter(None, lines)) or None
