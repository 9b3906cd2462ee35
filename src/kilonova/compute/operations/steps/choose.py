"""The steps "choose host" and "claim" of every operation that places a server: select a host, claim its resources.

A later step that finds the host unfit goes back to "choose host".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from msgspec import Struct, convert

from kilonova.compute.host_calls import Policy, call
from kilonova.compute.servers import scheduling
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages import MoveTicket
from kilonova.hosts.messages.verbs import NewGuestVerb
from kilonova.hosts.transport import HostCallError
from kilonova.operations import Failed, GoBack, Operation, Step, StepResult, TransientError
from kilonova.placement.claims import Consumer
from kilonova.scheduler import Candidate, Diagnosis, Plan, Request, attempts, claim_first
from kilonova.scheduler.attempts import Packed
from kilonova.store import Transaction

Op = TypeVar("Op", bound=Operation)


class Proposal(Struct, frozen=True):
    """The best hosts, best first, and the packed diagnosis."""

    candidates: tuple[Candidate, ...]
    diagnosis: dict[str, object]


class Claim(Struct, frozen=True, omit_defaults=True):
    """For a move, `node` is the host's `hypervisor_hostname`, and `ticket` the secret of source and destination.

    `providers` has the resource provider of each request group that a port of the server needs. `former` has the key
    `allocation` in the profiles of ports that had such providers before, by port.
    """

    host: str
    node: str | None = None
    ticket: str = ""
    providers: dict[str, str] = {}
    former: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"Claim(host={self.host!r})"


class Note(Struct, frozen=True):
    """What the operation remembers of earlier rounds."""

    # Hosts that failed to build the server: their own words, and the words for users.
    tried: dict[str, str] = {}
    public: dict[str, str] = {}
    # Uuids of the candidates that the last claim lost to others, and how many claims lost all candidates.
    lost: list[str] = []
    losses: int = 0


CHOOSE = StepResult("choose host", Proposal)
CLAIM = StepResult("claim", Claim)


def first_steps(
    choose: Callable[[Op], Awaitable[Proposal]],
    claim: Callable[[Op, Transaction], Awaitable[Claim]],
    release: Callable[[Op, Transaction], Awaitable[None]],
    *,
    task_state: str | None = None,
) -> tuple[Step[Op], Step[Op]]:
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
    return op.result(CLAIM).host


def note_of(op: Operation) -> Note:
    return convert(op.note, Note)


def tried_hosts(op: Operation) -> frozenset[str]:
    """Hosts that failed to build the server in earlier rounds of the operation."""
    return frozenset(note_of(op).tried)


async def propose(op: Operation, server: Server, request: Request) -> Proposal:
    """Plan with the scheduler: the result of "choose host". Raises Failed if no host is valid."""
    note = note_of(op)
    found = await op.services.scheduler.plan(request, lost=note.lost)
    if not found.candidates and await scheduling.others_may_leave(op.db, server, note.tried, request.group):
        raise TransientError(_refusal(note, found.diagnosis))
    return await proposal_from_plan(op, found)


async def proposal_from_plan(op: Operation, found: Plan) -> Proposal:
    """The result of "choose host" for a plan. Raises Failed if the plan has no candidate."""
    if not found.candidates:
        note = note_of(op)
        async with op.db.transaction() as tx:
            await _record_attempt(op, tx, found.diagnosis, None)
        fault = _fault(note.tried, found.diagnosis.rejection_report())
        raise Failed(_refusal(note, found.diagnosis), fault=fault)
    return Proposal(found.candidates, attempts.pack(found.diagnosis))


def _refusal(note: Note, diagnosis: Diagnosis) -> str:
    sentence = diagnosis.sentence()
    return f"{sentence}. Tried before: {_reasons(note.tried, note.public)}" if note.tried else sentence


async def claim_candidate(op: Operation, tx: Transaction, server: Server, consumer: Consumer) -> Candidate:
    """Claim the first candidate that still has room; others may have claimed since the plan. Raises GoBack."""
    chosen = op.result(CHOOSE)
    accepts = await scheduling.group_policy(tx, server)
    taken = await claim_first(tx, chosen.candidates, consumer, accepts=accepts)
    if taken is None:
        lost = [candidate.uuid for candidate in chosen.candidates]
        allowed = accepts is None or any(map(accepts, chosen.candidates))
        reason = "other claims or changes came first" if allowed else "the policy of its server group now excludes it"
        note = {"lost": lost, "losses": note_of(op).losses + 1}
        raise GoBack(CHOOSE, note=note, reason=f"{reason} on every proposed host")
    if op.epoch > 1:  # an earlier worker may have recorded a refusal and died
        await attempts.delete_refusal(tx, server.id, op.id)
    await _record_attempt(op, tx, chosen.diagnosis, taken.host)
    # A repeated "choose host" makes a new plan, so the other candidates need not be stored.
    op.drop_result(CHOOSE)
    op.host = taken.host
    return taken


def former_allocations(server: Server) -> dict[str, object]:
    """The key `allocation` in the profiles of the server's ports, by port."""
    return {nic.port_id: nic.allocation for nic in server.nics if nic.allocation is not None}


def move_ticket(op: Operation) -> MoveTicket | None:
    """The ticket of the operation's move to the claimed host; None if it moves nothing."""
    claim = op.find_result(CLAIM)
    return MoveTicket(key=claim.ticket) if claim is not None and claim.ticket else None


async def build_guest(op: Operation, host: str, step: str, verb: NewGuestVerb[object]) -> None:
    """Build the guest on the claimed host. If the host fails or does not respond, go back and try the next one."""
    await call(op, host, step, verb, NEXT_HOST)
    op.services.scheduler.record_build(host, True)


def try_next_host(op: Operation, host: str, outcome: HostCallError) -> NoReturn:
    """Go back to "choose host" without this host, at most `operations.max_build_attempts` times."""
    op.services.scheduler.record_build(host, False)
    note = note_of(op)
    tried, public = {**note.tried, host: outcome.message}, {**note.public, host: outcome.public}
    if len(tried) >= op.services.config.operations.max_build_attempts:
        count = "1 host" if len(tried) == 1 else f"{len(tried)} hosts"
        message = f"No valid host was found: {count} could not build the server: {_reasons(tried, public)}"
        raise Failed(message, fault=_fault(tried)) from outcome
    changes: dict[str, object] = {"tried": tried, "public": public, "lost": []}
    raise GoBack(CHOOSE, note=changes, reason=outcome.public, fault=str(outcome)) from outcome


NEXT_HOST = Policy(watches=True, failure=lambda op, _, outcome: try_next_host(op, outcome.host, outcome))


async def _record_attempt(op: Operation, tx: Transaction, diagnosis: Diagnosis | Packed, host: str | None) -> None:
    await attempts.record(
        tx,
        server_id=str(op.server_id),
        operation_id=op.id,
        kind=op.kind,
        diagnosis=diagnosis,
        host=host,
        lost=note_of(op).losses,
    )


def _reasons(tried: dict[str, str], public: dict[str, str]) -> str:
    """Why hosts could not build the server, without names of hosts: users see this text."""
    counts = Counter(public.get(host, HostCallError.public) for host in tried)
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def _fault(tried: dict[str, str], account: str = "") -> str | None:
    """Details for administrators: hosts that could not build the server, and hosts that the scheduler rejected."""
    lines = [*(f"{host}: {reason}" for host, reason in tried.items()), account]
    return "\n".join(filter(None, lines)) or None
