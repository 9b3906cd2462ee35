"""What administrators may do to servers that nobody else may: say what state they are in."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations import reset_state
from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.reset_state import ResetState
from kilonova.compute.servers import acting, model, states
from kilonova.http import Answer, Context
from kilonova.http.errors import Conflict
from kilonova.http.pieces import ANYTHING, Schema, closed
from kilonova.operations import request_cancel
from kilonova.store import Row, Transaction

RULE = "os_compute_api:os-admin-actions:"

RESET_STATE: Schema = closed({"state": {"type": "string", "enum": [states.ACTIVE, states.ERROR]}}, ["state"])


@api.action("os-resetState", body=RESET_STATE, checks=[RULE + "reset_state"], status=202)
async def reset(ctx: Context, server_id: str) -> Answer:
    """Say that a server is active or in error. What is going on is undone before that."""
    state = ctx.body["os-resetState"]["state"]
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + "reset_state", lock=True)
        unfinished = await model.unfinished(tx, server_id)
        _check(row, state, unfinished)
        for operation in unfinished:
            await request_cancel(tx, operation["id"])
        if unfinished:
            await acting.start(ctx, tx, row, ResetState, {"state": state})
        else:
            await reset_state.write(tx, server_id, state)
            await acting.note(ctx, tx, row, ResetState.action, f"said to be {state}")
    return Answer()


def _check(row: Row, state: str, unfinished: list[Row]) -> None:
    transition = states.TRANSITIONS["os-resetState"]
    if any(operation["kind"] == Delete.kind for operation in unfinished):
        raise Conflict(f"Cannot '{transition.verb}' instance {row['id']} while it is in task_state deleting")
    building = row["vm_state"] == states.BUILDING and state == states.ERROR
    if row["vm_state"] not in transition.allowed and not building:
        raise Conflict(f"Cannot '{transition.verb}' instance {row['id']} while it is in vm_state {row['vm_state']}")
    if state == states.ACTIVE and row["host"] is None:
        raise Conflict(f"Instance {row['id']} is not ready: no host has it")


@api.action("injectNetworkInfo", body=ANYTHING, checks=[RULE + "inject_network_info"], status=202)
async def inject_network_info(ctx: Context, server_id: str) -> Answer:
    """Accepted for old clients. Guests learn of their networks by DHCP and metadata, which are never out of date."""
    async with ctx.db.transaction() as tx:
        await _find_unlocked(ctx, tx, server_id)
    return Answer()


async def _find_unlocked(ctx: Context, tx: Transaction, server_id: str) -> None:
    row = await model.find(ctx, tx, server_id, rule=RULE + "inject_network_info")
    acting.check_unlocked(ctx, row)
