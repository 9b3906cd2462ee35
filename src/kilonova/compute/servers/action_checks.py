"""Checks that actions on servers share: policy, lock, state, and no unfinished operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kilonova.compute import dry_run
from kilonova.compute.migrations.model import begin_move
from kilonova.compute.operations.steps import plugged
from kilonova.compute.server_shares import model as server_shares
from kilonova.compute.servers import model, states
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict
from kilonova.operations import Operation, begin, control
from kilonova.operations import views as operations
from kilonova.store import Reader, Transaction

P = TypeVar("P")


async def begin_action(
    ctx: Context,
    server_id: str,
    operation: type[Operation[P]],
    *,
    rule: str,
    transition: str,
    params_of: Callable[[Server], P] | None = None,
) -> Response:
    """Check the server and begin the operation, in one transaction. For actions that choose no host."""
    async with ctx.db.transaction() as tx:
        server = await find_ready(ctx, tx, server_id, rule=rule, transition=transition)
        if not dry_run.is_requested(ctx):
            await begin_operation(ctx, tx, server, operation, params_of(server) if params_of else None)
            return Response()
    return await dry_run.plan_response(ctx, model.target(server), [])


async def find_ready(
    ctx: Context, tx: Transaction, server_id: str, *, rule: str, transition: str, even_locked: bool = False
) -> Server:
    """Find the server for an action on its host, and lock its row. Raises 404, 403 or 409, in this order.

    `even_locked`: the action is allowed on a server that a user has locked.
    """
    find = find_in_state if even_locked else find_unlocked
    server = await find(ctx, tx, server_id, rule=rule, transition=transition)
    if server.host is None:
        raise Conflict(f"Instance {server_id} is not ready: it has no host")
    return server


async def find_unlocked(
    ctx: Context, tx: Transaction, server_id: str, *, rule: str, transition: str | None = None
) -> Server:
    """Find the server, which may have no host, and lock its row. Without a transition every state is allowed."""
    server = await model.find(ctx, tx, server_id, rule=rule, lock=True)
    check_unlocked(ctx, server)
    if transition is not None:
        await check_state(tx, server, states.TRANSITIONS[transition])
    return server


async def find_in_state(ctx: Context, tx: Transaction, server_id: str, *, rule: str, transition: str) -> Server:
    """Find the server, which may be locked and may have no host, and lock its row."""
    server = await model.find(ctx, tx, server_id, rule=rule, lock=True)
    await check_state(tx, server, states.TRANSITIONS[transition])
    return server


async def begin_operation(
    ctx: Context,
    tx: Transaction,
    server: Server,
    operation: type[Operation[P]],
    params: P | None = None,
    *,
    without: frozenset[str] = frozenset(),
) -> str:
    """Begin the operation, without the steps `without`. Returns its id."""
    return await begin(
        tx,
        operation,
        params=params,
        server_id=server.id,
        project_id=server.project_id,
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
        host=server.host,
        without=without,
    )


async def record_action(ctx: Context, tx: Transaction, server: Server, action: str, words: str) -> None:
    """Record an instance action that this transaction completes."""
    await control.record_notice(
        tx,
        action=action,
        message=words,
        server_id=server.id,
        project_id=server.project_id,
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
        host=server.host,
    )


async def begin_move_operation(
    ctx: Context, tx: Transaction, server: Server, operation: type[Operation[P]], type: str, params: P
) -> str:
    """Begin the operation and insert its migration. Returns the operation's id."""
    return await begin_move(
        tx,
        operation,
        server,
        type=type,
        params=params,
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
        without=plugged.steps_to_skip(ctx.services),
    )


async def check_destination(reader: Reader, server: Server, host: str | None) -> None:
    """Check that the requested destination exists and is not the server's host."""
    if host is None:
        return
    await check_host(reader, host)
    if host == server.host:
        raise BadRequest("The target host can't be the same one.")


async def check_host(reader: Reader, host: str) -> None:
    if await reader.fetch_one("SELECT 1 AS one FROM hypervisors WHERE host = $1", host) is None:
        raise BadRequest(f"Compute host {host} could not be found.")


def check_unlocked(ctx: Context, server: Server) -> None:
    if server.locked and not ctx.may("os_compute_api:os-lock-server:unlock:unlock_override", model.target(server)):
        raise Conflict(f"Instance {server.id} is locked")


async def check_state(tx: Transaction, server: Server, transition: states.Transition) -> None:
    running = (await operations.find_running(tx, [server.id])).get(server.id)
    word = "task_state" if running else "vm_state"
    state = running.task_state if running else server.vm_state
    if running or not transition.allows(server.vm_state, shelved=server.is_shelved):
        raise Conflict(f"Cannot '{transition.verb}' instance {server.id} while it is in {word} {state}")
    if not transition.with_shares and await server_shares.has_shares(tx, server.id):
        raise Conflict(f"Cannot '{transition.verb}' instance {server.id} while it has shares: detach them first")


# Whether the provider of host $1 and hypervisor $2 has the trait $3.
HAS_TRAIT = """
SELECT 1 FROM hypervisors h JOIN resource_providers p ON p.uuid = h.uuid
JOIN provider_traits t ON t.provider_id = p.id AND t.trait = $3
WHERE h.host = $1 AND h.hypervisor_hostname = $2
"""
