"""Detach a share from a stopped server: remove it from the guest, deny the host access, and unlock it."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import UNLESS_MISSING, call
from kilonova.compute.operations.steps import cleanup, shares
from kilonova.compute.operations.steps.server import Harmless, fence, server_of
from kilonova.compute.server_shares import model as server_shares
from kilonova.compute.server_shares.model import ServerShare
from kilonova.compute.servers import model
from kilonova.operations import Entry, Failed, Step, transaction_step
from kilonova.store import Transaction

REMOVE = "remove share"


class DetachShareParams(Struct, frozen=True):
    """The id of the row, and its status before."""

    server_share: str
    status: str


class DetachShare(Harmless[DetachShareParams]):
    """The transaction that begins the operation sets the status `detaching`."""

    kind = kinds.DETACH_SHARE
    action = "detach_share"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[DetachShare], ...]:
        return (
            Step(REMOVE, remove, undo=add_again, deadline=300),
            Step("deny access", deny, undo=allow_again, deadline=120),
            Step("unlock share", unlock, undo=lock_again, deadline=120),
            transaction_step("settle", settle, "the row"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        await server_shares.set_status(tx, self.params.server_share, self.params.status)
        await super().failed(tx, error)


async def remove(op: DetachShare) -> None:
    """Remove the share from the guest. A missing guest has none."""
    server = await server_of(op)
    if server.host:
        await call(op, server.host, REMOVE, await shares.set_shares(op, server.id), UNLESS_MISSING)


async def add_again(op: DetachShare) -> None:
    server, share = await server_of(op), await attached_share(op)
    if server.host and share is not None:
        verb = await shares.set_shares(op, server.id, also=share)
        await cleanup.set_shares(op, server.host, f"undo {REMOVE}", verb)


async def deny(op: DetachShare) -> None:
    if (share := await share_of(op)) is not None:
        await shares.update_access(op, share)


async def allow_again(op: DetachShare) -> None:
    share = await attached_share(op)
    if share is None:
        return
    async with op.db.transaction() as tx:
        await server_shares.set_status(tx, share.id, server_shares.ATTACHED)
        await fence(op, tx)
    async with cleanup.tolerate_refusals(op):
        await shares.update_access(op, share)


async def unlock(op: DetachShare) -> None:
    if (share := await share_of(op)) is not None:
        await shares.unlock(op, share)


async def lock_again(op: DetachShare) -> None:
    if (share := await attached_share(op)) is not None:
        async with cleanup.tolerate_refusals(op):
            await shares.lock(op, share)


async def settle(op: DetachShare, tx: Transaction) -> None:
    await server_shares.remove(tx, op.params.server_share)
    await model.settle_unchanged(tx, str(op.server_id))


async def share_of(op: DetachShare) -> ServerShare | None:
    return await server_shares.get(op.db, op.params.server_share)


async def attached_share(op: DetachShare) -> ServerShare | None:
    """The share, if it was attached before: an undo restores that. A share in error has no access and no lock."""
    return await share_of(op) if op.params.status == server_shares.ATTACHED else None
