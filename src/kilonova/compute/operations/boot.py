"""Boot: a new server gets a host, ports and a guest; a host that cannot build it is left for the next."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, NoReturn

import orjson
from msgspec import convert, structs

from kilonova import clock
from kilonova.compute.operations import ports, silence
from kilonova.compute.operations.common import ask, command, guest_of, server_of
from kilonova.compute.servers import model, placing, states
from kilonova.compute.servers.placing import Destination
from kilonova.hosts.messages import Destroy, Spawn
from kilonova.hosts.transport import HostFailed, HostTrouble, HostUnreachable
from kilonova.operations import Cancelled, Failed, GoBack, Operation, Passing, Step
from kilonova.placement.claims import Consumer, release
from kilonova.scheduler import Candidate, Diagnosis, attempts, claim_first
from kilonova.scheduler.attempts import Packed
from kilonova.store import Transaction


class Boot(Operation):
    """`params`: `networks` (one entry per interface), `security_groups` (names), `destination` (or null for any)."""

    kind = "boot"
    action = "create"
    # Losing a race for a host is a round too; how many hosts may fail to build the server is configured.
    rounds = 32

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (
            Step("choose host", choose, undo=None, why="a plan changes nothing", deadline=60, task_state="scheduling"),
            Step(
                "claim",
                take,
                undo=give_back,
                deadline=30,
                transaction=True,
                undo_transaction=True,
                task_state="scheduling",
            ),
            Step("make ports", make_ports, undo=drop_ports, deadline=120, task_state="networking"),
            Step("spawn", spawn, undo=destroy, deadline=600, task_state="spawning"),
            Step(
                "settle",
                settle,
                undo=None,
                why="one transaction: state, interfaces and time of launch",
                deadline=30,
                transaction=True,
                task_state="spawning",
            ),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        # A boot is cancelled only by a delete, which comes next and takes the server as it is.
        if not isinstance(error, Cancelled):
            await model.fail(tx, str(self.server_id), str(error), error.fault)


async def choose(op: Operation) -> dict[str, Any]:
    server = await server_of(op)
    tried = op.note.get("tried", {})
    destination = convert(op.params["destination"] or {}, Destination)
    request = await placing.request_for(op.db, server, destination=destination, excluded=frozenset(tried))
    plan = await op.services.scheduler.plan(request, lost=op.note.get("lost", ()))
    if not plan.candidates:
        message = _no_host(plan.diagnosis.sentence(), tried, op.note)
        if await placing.others_may_leave(op.db, server, tried, request.group):
            raise Passing(message)
        async with op.db.transaction() as tx:
            await _keep(op, tx, plan.diagnosis, None)
        raise Failed(message, fault=_fault(tried, plan.diagnosis.account()))
    candidates = [structs.astuple(candidate) for candidate in plan.candidates]
    return {"candidates": candidates, "diagnosis": attempts.pack(plan.diagnosis)}


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


def _no_host(sentence: str, tried: dict[str, str], note: dict[str, Any]) -> str:
    return f"{sentence}. Tried before: {_reasons(tried, note)}" if tried else sentence


def _reasons(tried: dict[str, str], note: dict[str, Any]) -> str:
    """Why hosts could not build the server; which hosts they were, and in what words, is not for everybody."""
    public = note.get("public", {})
    counts = Counter(public.get(host, HostTrouble.public) for host in tried)
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def _fault(tried: dict[str, str], account: str = "") -> str | None:
    """What a failure keeps for administrators: which hosts could not build the server, and who was not even asked."""
    lines = [*(f"{host}: {reason}" for host, reason in tried.items()), account]
    return "\n".join(filter(None, lines)) or None


async def take(op: Operation, tx: Transaction) -> dict[str, str]:
    """The first candidate that has room gets the server; the plan may be older than other claims."""
    server = await server_of(op, tx)
    chosen = op.results["choose host"]
    candidates = [Candidate(*fields) for fields in chosen["candidates"]]
    accepts = await placing.group_policy(tx, server)
    consumer = Consumer(server["id"], server["project_id"], server["user_id"])
    taken = await claim_first(tx, candidates, consumer, accepts=accepts)
    if taken is None:
        note = {"lost": [candidate.uuid for candidate in candidates], "losses": op.note.get("losses", 0) + 1}
        obedient = accepts is None or any(map(accepts, candidates))
        reason = "others were faster, or changed it," if obedient else "its server group now rules otherwise"
        raise GoBack("choose host", note=note, reason=f"{reason} on every proposed host")
    await model.set_host(tx, server["id"], taken.host, taken.hypervisor_hostname)
    if op.epoch > 1:  # another worker may have died between a refusal and its end
        await attempts.forget_refusal(tx, server["id"], op.id)
    await _keep(op, tx, chosen["diagnosis"], taken.host)
    # Nobody needs the rest of the plan any more; whoever comes back here makes a new one.
    del op.results["choose host"]
    op.host = taken.host
    return {"host": taken.host}


async def give_back(op: Operation, tx: Transaction) -> None:
    await release(tx, str(op.server_id))
    await model.set_host(tx, str(op.server_id), None, None)
    op.host = None


async def make_ports(op: Operation) -> list[dict[str, Any]]:
    host = op.results["claim"]["host"]
    return await ports.make(op, host, op.params["networks"], op.params["security_groups"])


async def drop_ports(op: Operation) -> None:
    given = [entry["port"] for entry in op.params["networks"] if entry["port"]]
    await ports.drop(op, given)


async def spawn(op: Operation) -> None:
    host = op.results["claim"]["host"]
    guest = guest_of(await server_of(op), op.results["make ports"])
    since = time.monotonic()
    try:
        with silence.watched(op, host):
            await ask(op, host, "spawn", Spawn(guest=guest), timeout=op.services.config.operations.host_seconds)
    except HostUnreachable as error:
        if not await silence.is_silent(op, host, since):
            raise
        reason = silence.no_answer(op)
        _next_host(op, host, reason, reason, error)
    except HostFailed as error:
        if error.passing:
            raise
        _next_host(op, host, error.message, error.public, error)
    op.services.scheduler.built(host, True)


def _next_host(op: Operation, host: str, reason: str, public: str, error: HostTrouble) -> NoReturn:
    op.services.scheduler.built(host, False)
    tried = {**op.note.get("tried", {}), host: reason}
    note = {"tried": tried, "public": {**op.note.get("public", {}), host: public}, "lost": []}
    if len(tried) >= op.services.config.operations.boot_hosts:
        hosts = "1 host" if len(tried) == 1 else f"{len(tried)} hosts"
        message = f"No valid host was found: {hosts} could not build the server: {_reasons(tried, note)}"
        raise Failed(message, fault=_fault(tried)) from error
    raise GoBack("choose host", note=note, reason=public, fault=f"{host}: {reason}") from error


async def destroy(op: Operation) -> None:
    host = op.results["claim"]["host"]
    since = time.monotonic()
    try:
        await command(op, host, "undo spawn", Destroy(guest_id=str(op.server_id)), timeout=silence.PING)
    except HostUnreachable:
        # Whoever goes to the next host because this one is silent need not find that out again.
        if host not in op.note.get("tried", {}) and not await silence.is_silent(op, host, since):
            raise
        async with op.db.transaction() as tx:
            await silence.leave_guest(op, tx, host)


async def settle(op: Operation, tx: Transaction) -> None:
    now = clock.now()
    await tx.execute(
        "UPDATE servers SET vm_state = $2, power_state = $3, nics = $4, launched_at = $5, updated_at = $5"
        " WHERE id = $1",
        op.server_id,
        states.ACTIVE,
        states.RUNNING,
        orjson.dumps(op.results["make ports"]).decode(),
        now,
    )
