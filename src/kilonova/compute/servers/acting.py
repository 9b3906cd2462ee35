"""What every action on a server begins with: may the caller, does the state allow it, is nothing else going on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.compute import dry_run
from kilonova.compute.migrations.model import begin_move
from kilonova.compute.servers import model, states
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Conflict
from kilonova.operations import Operation, begin, requests
from kilonova.operations import views as operations
from kilonova.store import Reader, Row, Transaction


async def act(
    ctx: Context,
    server_id: str,
    operation: type[Operation],
    *,
    rule: str,
    transition: str,
    params_of: Callable[[Row], dict[str, Any]] | None = None,
) -> Answer:
    """One transaction: the state allows it, nothing else is happening, the operation's row is written.

    It chooses no host, so that a dry run of it has no plans to show.
    """
    async with ctx.db.transaction() as tx:
        row = await ready(ctx, tx, server_id, rule=rule, transition=transition)
        if not dry_run.asked(ctx):
            await start(ctx, tx, row, operation, params_of(row) if params_of else None)
            return Answer()
    return await dry_run.answer(ctx, model.target(row), [])


async def ready(ctx: Context, tx: Transaction, server_id: str, *, rule: str, transition: str) -> Row:
    """The server, locked until `tx` ends, for an act that needs its host. 404, 403, 409 in this order."""
    row = await model.find(ctx, tx, server_id, rule=rule, lock=True)
    check_unlocked(ctx, row)
    await check_state(tx, row, states.TRANSITIONS[transition])
    if row["host"] is None:
        raise Conflict(f"Instance {server_id} is not ready: no host has it")
    return row


async def start(
    ctx: Context,
    tx: Transaction,
    row: Row,
    operation: type[Operation],
    params: dict[str, Any] | None = None,
    *,
    without: frozenset[str] = frozenset(),
) -> str:
    """Write the operation's row, with a plan without the steps that it has no need of. Returns its id."""
    return await begin(
        tx,
        operation,
        params=params,
        server_id=row["id"],
        project_id=row["project_id"],
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
        host=row["host"],
        without=without,
    )


async def note(ctx: Context, tx: Transaction, row: Row, action: str, words: str) -> None:
    """Write down, in the server's history, what this very transaction does to it."""
    await requests.note(
        tx,
        action=action,
        words=words,
        server_id=row["id"],
        project_id=row["project_id"],
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
        host=row["host"],
    )


async def start_move(
    ctx: Context, tx: Transaction, row: Row, operation: type[Operation], type: str, params: dict[str, Any]
) -> str:
    """Write the rows of the operation and its move. Returns the operation's id."""
    return await begin_move(
        tx, operation, row, type=type, params=params, user_id=ctx.token.user_id, request_id=ctx.request_id
    )


async def check_destination(reader: Reader, row: Row, host: str | None) -> None:
    """Of one that is to leave its host. Whether the named one takes it, the scheduler knows."""
    if host is None:
        return
    await check_host(reader, host)
    if host == row["host"]:
        raise BadRequest("The target host can't be the same one.")


async def check_host(reader: Reader, host: str) -> None:
    if await reader.fetch_one("SELECT 1 AS one FROM hypervisors WHERE host = $1", host) is None:
        raise BadRequest(f"Compute host {host} could not be found.")


def check_unlocked(ctx: Context, row: Row) -> None:
    if row["locked"] and not ctx.may("os_compute_api:os-lock-server:unlock:unlock_override", model.target(row)):
        raise Conflict(f"Instance {row['id']} is locked")


async def check_state(tx: Transaction, row: Row, transition: states.Transition) -> None:
    running = (await operations.running_of(tx, [row["id"]])).get(row["id"])
    word = "task_state" if running else "vm_state"
    state = running.task_state if running else row["vm_state"]
    if running or state not in transition.allowed:
        raise Conflict(f"Cannot '{transition.verb}' instance {row['id']} while it is in {word} {state}")


# Whether the host of that name, and of that hypervisor, has the trait.
HAS_TRAIT = """
SELECT 1 FROM hypervisors h JOIN resource_providers p ON p.uuid = h.uuid
JOIN provider_traits t ON t.provider_id = p.id AND t.trait = $3
WHERE h.host = $1 AND h.hypervisor_hostname = $2
"""
