"""Reset the state of a server, and reset its network."""

from __future__ import annotations

from typing import NamedTuple

from kilonova.compute.api import api
from kilonova.compute.operations import reset_state
from kilonova.compute.operations.delete import Delete
from kilonova.compute.operations.reset_state import ResetState, ResetStateParams
from kilonova.compute.servers import action_checks, model, states
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict
from kilonova.http.parameter_types import ANYTHING, Schema, closed_object
from kilonova.operations import Failed, request_cancel
from kilonova.store import Transaction

RULE = "os_compute_api:os-admin-actions:"

RESET_STATE: Schema = closed_object({"state": {"type": "string", "enum": [states.ACTIVE, states.ERROR]}}, ["state"])


class _Requester(NamedTuple):
    project_id: str | None
    user_id: str | None
    request_id: str | None


@api.action("os-resetState", body=RESET_STATE, checks=[RULE + "reset_state"], status=202)
async def reset(ctx: Context, server_id: str) -> Response:
    """Set the state of a server to active or error, after its unfinished operation is undone.

    An unconfirmed resize is confirmed. A shelved server in error can be unshelved.
    """
    state = ctx.body["os-resetState"]["state"]
    async with ctx.db.transaction() as tx:
        server = await model.find(ctx, tx, server_id, rule=RULE + "reset_state", lock=True)
        unfinished = await model.unfinished(tx, server_id)
        await _check(ctx, tx, server, state, unfinished)
        for operation in unfinished:
            await request_cancel(tx, operation.id)
        if unfinished:
            await action_checks.begin_operation(ctx, tx, server, ResetState, ResetStateParams(state))
        else:
            requester = _Requester(server.project_id, ctx.token.user_id, ctx.request_id)
            await reset_state.reset(ctx.services, tx, server, state, requester)
            await action_checks.record_action(ctx, tx, server, ResetState.action, f"set to {state}")
    return Response()


async def _check(
    ctx: Context, tx: Transaction, server: Server, state: str, unfinished: list[model.UnfinishedOperation]
) -> None:
    transition = states.TRANSITIONS["os-resetState"]
    if any(operation.kind == Delete.kind for operation in unfinished):
        raise Conflict(f"Cannot '{transition.verb}' instance {server.id} while it is in task_state deleting")
    if state not in transition.follows.get(server.vm_state, ()):
        raise Conflict(f"Cannot '{transition.verb}' instance {server.id} while it is in vm_state {server.vm_state}")
    if state == states.ACTIVE and server.host is None:
        raise Conflict(f"Instance {server.id} is not ready: it has no host")
    try:
        await reset_state.check(ctx.services, tx, server, state)
    except Failed as error:
        raise Conflict(str(error)) from None


@api.action("injectNetworkInfo", body=ANYTHING, checks=[RULE + "inject_network_info"], status=202)
async def inject_network_info(ctx: Context, server_id: str) -> Response:
    """Do nothing, for old clients. DHCP and metadata always have the current networks."""
    server = await model.find(ctx, ctx.db, server_id, rule=RULE + "inject_network_info")
    action_checks.check_unlocked(ctx, server)
    return Response()
