"""What every action on a server begins with: may the caller, does the state allow it, is nothing else going on."""

from __future__ import annotations

from typing import Any

from kilonova.compute.servers import model, states
from kilonova.http import Answer, Context
from kilonova.http.errors import Conflict
from kilonova.operations import Operation, begin
from kilonova.operations import views as operations
from kilonova.store import Row, Transaction


async def act(
    ctx: Context,
    server_id: str,
    operation: type[Operation],
    *,
    rule: str,
    transition: str,
    params: dict[str, Any] | None = None,
) -> Answer:
    """One transaction: the state allows it, nothing else is happening, the operation's row is written."""
    async with ctx.db.transaction() as tx:
        row = await ready(ctx, tx, server_id, rule=rule, transition=transition)
        await start(ctx, tx, row, operation, params)
    return Answer()


async def ready(ctx: Context, tx: Transaction, server_id: str, *, rule: str, transition: str) -> Row:
    """The server, locked until `tx` ends, for an act that needs its host. 404, 403, 409 in this order."""
    row = await find(ctx, tx, server_id, rule=rule, transition=transition)
    if row["host"] is None:
        raise Conflict(f"Instance {server_id} is not ready: no host has it")
    return row


async def find(ctx: Context, tx: Transaction, server_id: str, *, rule: str, transition: str) -> Row:
    """Like `ready`, of a server that may have no host."""
    row = await model.find(ctx, tx, server_id, rule=rule, lock=True)
    check_unlocked(ctx, row)
    await check_state(tx, row, states.TRANSITIONS[transition])
    return row


async def start(
    ctx: Context,
    tx: Transaction,
    row: Row,
    operation: type[Operation],
    params: dict[str, Any] | None = None,
) -> str:
    """Write the operation's row. Returns its id."""
    return await begin(
        tx,
        operation,
        params=params,
        server_id=row["id"],
        project_id=row["project_id"],
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
        host=row["host"],
    )


def check_unlocked(ctx: Context, row: Row) -> None:
    if row["locked"] and not ctx.may("os_compute_api:os-lock-server:unlock:unlock_override", model.target(row)):
        raise Conflict(f"Instance {row['id']} is locked")


async def check_state(tx: Transaction, row: Row, transition: states.Transition) -> None:
    running = (await operations.running_of(tx, [row["id"]])).get(row["id"])
    word = "task_state" if running else "vm_state"
    state = running.task_state if running else row["vm_state"]
    if running or state not in transition.allowed:
        raise Conflict(f"Cannot '{transition.verb}' instance {row['id']} while it is in {word} {state}")
