"""Update a guest's metadata after its server's name or metadata changed; deferred if its host is unreachable."""

from __future__ import annotations

import hashlib
from typing import ClassVar

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import ONCE, Policy, Timeout, call
from kilonova.compute.operations.steps.server import fence, server_of
from kilonova.compute.servers import model
from kilonova.compute.servers.server import Server
from kilonova.hosts.messages.verbs import SetMetadata
from kilonova.hosts.transport import HostRefused, HostUnreachable, NothingThere
from kilonova.http import Context
from kilonova.operations import Entry, Operation, Step, TransientError, begin
from kilonova.store import Transaction
from kilonova.store.records import Record, encode_document

UPDATE = "update metadata"
WHY = "it copies the server's row"


class UpdateMetadataParams(Struct, frozen=True):
    """`forgetting`: whether the host deletes the password that the guest has posted."""

    forgetting: bool = False


class UpdateMetadata(Operation[UpdateMetadataParams]):
    """Update a guest's metadata. For an unreachable host, DeferredUpdateMetadata is begun, so that nothing waits."""

    kind = kinds.UPDATE_METADATA
    action = ""
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[UpdateMetadata], ...]:
        return (Step(UPDATE, update, undo=None, why=WHY, deadline=60),)


class DeferredUpdateMetadataParams(Struct, frozen=True):
    guest_id: str
    forgetting: bool = False


class DeferredUpdateMetadata(Operation[DeferredUpdateMetadataParams]):
    """Update a guest's metadata when its host responds again. No operation of the server waits for it."""

    kind = kinds.DEFERRED_UPDATE_METADATA
    action = ""
    background = True

    @staticmethod
    def steps() -> tuple[Entry[DeferredUpdateMetadata], ...]:
        return (Step(UPDATE, update_later, undo=None, why=WHY, deadline=24 * 3600),)


class NamedServer(Record, frozen=True):
    table: ClassVar[str] = "servers"

    name: str
    metadata: dict[str, str]
    host: str | None


async def begin_update(ctx: Context, tx: Transaction, server: Server, *, forgetting: bool = False) -> None:
    if server.host is not None and not await model.is_being_deleted(tx, server.id):
        await begin(
            tx,
            UpdateMetadata,
            params=UpdateMetadataParams(forgetting),
            server_id=server.id,
            project_id=server.project_id,
            user_id=ctx.token.user_id,
            request_id=ctx.request_id,
            host=server.host,
        )


async def update(op: UpdateMetadata) -> None:
    server, forgetting = await server_of(op), op.params.forgetting
    if server.host is None:
        return
    try:
        await _send(op, server.id, server.host, server, forgetting, Policy(timeout=Timeout.PROBE))
    except HostUnreachable:
        async with op.db.transaction() as tx:
            await begin(
                tx,
                DeferredUpdateMetadata,
                params=DeferredUpdateMetadataParams(server.id, forgetting),
                guest_id=server.id,
                project_id=op.project_id,
                request_id=op.request_id,
                # Reports of this host are ignored until the password is deleted there.
                host=server.host if forgetting else None,
            )
            await fence(op, tx)
    except HostRefused as refusal:
        if refusal.passing:
            raise
        # A missing guest needs no update. An older agent does not know the command.


async def update_later(op: DeferredUpdateMetadata) -> None:
    """Send the server's row to the host until the row has not changed since.

    Concurrent updates do the same, so that the last one sent matches the row.
    """
    sent: tuple[str, dict[str, str]] | None = None
    while (server := await _server(op)) is not None and (server.name, server.metadata) != sent:
        host, sent = server.host or "", (server.name, server.metadata)
        try:
            await _send(op, op.params.guest_id, host, server, op.params.forgetting, ONCE)
        except HostRefused as refusal:
            if refusal.passing or isinstance(refusal, NothingThere):
                raise TransientError(f"{host}: the guest is away") from refusal


async def _server(op: DeferredUpdateMetadata) -> NamedServer | None:
    """The server; None without a host, or if it is deleted."""
    sql = "SELECT name, metadata, host FROM servers WHERE id = $1 AND host IS NOT NULL AND NOT deleted"
    return NamedServer.decode_optional(await op.db.fetch_one(sql, op.params.guest_id))


async def _send(
    op: Operation, guest_id: str, host: str, server: Server | NamedServer, forgetting: bool, policy: Policy
) -> None:
    # A host runs each step once, so the step's name depends on the content.
    content = encode_document([server.name, encode_document(server.metadata)])
    step = f"{UPDATE} {hashlib.sha256(content.encode()).hexdigest()[:16]}"
    verb = SetMetadata(guest_id=guest_id, name=server.name, metadata=server.metadata, forgetting=forgetting)
    await call(op, host, step, verb, policy)
