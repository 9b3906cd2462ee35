"""Update a guest's metadata after its server's name or metadata changed; deferred if its host is unreachable."""

from __future__ import annotations

import hashlib

import orjson

from kilonova.compute.operations.steps.cleanup import MISSING
from kilonova.compute.operations.steps.hosts import PROBE_TIMEOUT_SECONDS, call_once
from kilonova.compute.operations.steps.server import fence, server_of
from kilonova.compute.servers import model
from kilonova.hosts.messages.verbs import SetMetadata
from kilonova.hosts.transport import HostFailed, HostUnreachable
from kilonova.http import Context
from kilonova.operations import Operation, Step, TransientError, begin
from kilonova.store import Row, Transaction

UPDATE = "update metadata"
FORGETTING = "forgetting"
WHY = "it copies the server's row"


class UpdateMetadata(Operation):
    """`params`: `forgetting`, whether the host deletes the password that the guest has posted.

    An unreachable host is left to DeferredUpdateMetadata, so that nothing waits for it.
    """

    kind = "update_metadata"
    action = ""
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step(UPDATE, update, undo=None, why=WHY, deadline=60),)


class DeferredUpdateMetadata(Operation):
    """`params`: `guest_id`, and those of UpdateMetadata. It has no server, so no operation waits for it."""

    kind = "deferred_update_metadata"
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Step, ...]:
        return (Step(UPDATE, update_later, undo=None, why=WHY, deadline=24 * 3600),)


async def begin_update(ctx: Context, tx: Transaction, row: Row, *, forgetting: bool = False) -> None:
    if row["host"] is not None and not await model.is_being_deleted(tx, row["id"]):
        await begin(
            tx,
            UpdateMetadata,
            params={FORGETTING: forgetting},
            server_id=row["id"],
            project_id=row["project_id"],
            user_id=ctx.token.user_id,
            request_id=ctx.request_id,
            host=row["host"],
        )


async def update(op: Operation) -> None:
    server = await server_of(op)
    if server["host"] is None:
        return
    try:
        await _send(op, server["id"], server["host"], server["name"], server["metadata"], PROBE_TIMEOUT_SECONDS)
    except HostUnreachable:
        async with op.db.transaction() as tx:
            params = {"guest_id": op.server_id, FORGETTING: op.params.get(FORGETTING, False)}
            # With its host, so that reports of this host are ignored until the password is deleted there.
            where = {"host": server["host"]} if params[FORGETTING] else {}
            await begin(
                tx, DeferredUpdateMetadata, params=params, project_id=op.project_id, request_id=op.request_id, **where
            )
            await fence(op, tx)
    except HostFailed as error:
        if error.passing:
            raise
        # A missing guest needs no update. An older agent does not know the command.


async def update_later(op: Operation) -> None:
    """Send the server's row to the host until the row has not changed since.

    Concurrent updates do the same, so that the last one sent matches the row.
    """
    sent: tuple[str, str] | None = None
    while (now := await _current(op)) is not None and now[1:] != sent:
        host, sent = now[0], now[1:]
        try:
            await _send(op, op.params["guest_id"], host, *sent)
        except HostFailed as error:
            if error.passing or error.kind in MISSING:
                raise TransientError(f"{host}: the guest is away") from error


async def _current(op: Operation) -> tuple[str, str, str] | None:
    """Host, name and metadata of the server; None without a host, or if it is deleted."""
    sql = "SELECT host, name, metadata FROM servers WHERE id = $1 AND host IS NOT NULL AND NOT deleted"
    row = await op.db.fetch_one(sql, op.params["guest_id"])
    return None if row is None else (row["host"], row["name"], row["metadata"])


async def _send(
    op: Operation, guest_id: str, host: str, name: str, metadata: str, timeout: float | None = None
) -> None:
    # A host runs each step once, so the step's name depends on the content.
    step = f"{UPDATE} {hashlib.sha256(orjson.dumps([name, metadata])).hexdigest()[:16]}"
    forgetting = bool(op.params.get(FORGETTING))
    verb = SetMetadata(guest_id=guest_id, name=name, metadata=orjson.loads(metadata), forgetting=forgetting)
    await call_once(op, host, step, verb, timeout=timeout)
