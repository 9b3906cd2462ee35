"""Attach a share to a stopped server: lock it, give the host access, and add it to the guest."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute import operation_kinds as kinds
from kilonova.compute.host_calls import call
from kilonova.compute.operations.steps import cleanup, shares
from kilonova.compute.operations.steps.server import Harmless, fence, server_of
from kilonova.compute.server_shares import model as server_shares
from kilonova.compute.server_shares.model import ServerShare
from kilonova.compute.servers import model
from kilonova.operations import Entry, Failed, Step, Wait, transaction_step
from kilonova.share.client import ACTIVE
from kilonova.store import Transaction

ADD = "add share"
POLL_SECONDS = 2.0


class ShareParams(Struct, frozen=True):
    """The id of the row."""

    server_share: str


class AttachShare(Harmless[ShareParams]):
    """The transaction that begins the operation inserts the row."""

    kind = kinds.ATTACH_SHARE
    action = "attach_share"
    blocks_requests = False

    @staticmethod
    def steps() -> tuple[Entry[AttachShare], ...]:
        return (
            Step("lock share", lock, undo=unlock, deadline=120),
            Step("allow access", allow, undo=deny, deadline=120),
            Wait(
                "wait for access",
                key=event_key,
                deadline=300,
                poll=has_access,
                poll_every=POLL_SECONDS,
                poll_first=True,
            ),
            Step(ADD, add, undo=remove, deadline=300),
            transaction_step("settle", settle, "the share's status"),
        )

    async def failed(self, tx: Transaction, error: Failed) -> None:
        """The share stays with the server, in error, until the user detaches it."""
        await server_shares.set_status(tx, self.params.server_share, server_shares.ERROR)
        await super().failed(tx, error)


async def lock(op: AttachShare) -> None:
    await shares.lock(op, await share_of(op))


async def unlock(op: AttachShare) -> None:
    async with cleanup.tolerate_refusals(op):
        await shares.unlock(op, await share_of(op))


async def allow(op: AttachShare) -> None:
    await shares.update_access(op, await share_of(op))


async def deny(op: AttachShare) -> None:
    """Deny access, unless another server on the host uses the share."""
    share = await share_of(op)
    async with op.db.transaction() as tx:
        await server_shares.set_status(tx, share.id, server_shares.ERROR)
        await fence(op, tx)
    async with cleanup.tolerate_refusals(op):
        await shares.update_access(op, share)


def event_key(op: AttachShare) -> str:
    return f"share access {op.params.server_share}"


async def has_access(op: AttachShare) -> bool | None:
    """Whether the access rule applies; None if not yet."""
    share = await share_of(op)
    async with shares.share_errors():
        rule = await shares.find_access(op, share)
    if rule is not None and rule.state == "error":
        raise Failed(f"The share service could not give the host access to share {share.share_id}.")
    if rule is None:
        await shares.update_access(op, share)
        return None
    return True if rule.state == ACTIVE else None


async def add(op: AttachShare) -> None:
    server, share = await server_of(op), await share_of(op)
    await call(op, server.host_name, ADD, await shares.set_shares(op, server.id, also=share))


async def remove(op: AttachShare) -> None:
    server = await server_of(op)
    await cleanup.set_shares(op, server.host_name, f"undo {ADD}", await shares.set_shares(op, server.id))


async def settle(op: AttachShare, tx: Transaction) -> None:
    await server_shares.set_status(tx, op.params.server_share, server_shares.ATTACHED)
    await model.settle_unchanged(tx, str(op.server_id))


async def share_of(op: AttachShare) -> ServerShare:
    share = await server_shares.get(op.db, op.params.server_share)
    if share is None:
        raise Failed("The share was detached meanwhile.")
    return share
