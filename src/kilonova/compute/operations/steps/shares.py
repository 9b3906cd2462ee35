"""Shares of a server: access for its host, the lock of the share, and the guest's shares on the host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kilonova.compute.server_shares import model
from kilonova.compute.server_shares.model import ServerShare
from kilonova.hosts.messages.verbs import SetShares
from kilonova.operations import Failed, Operation
from kilonova.share.client import AccessRule, ShareError

_RULE_REASON = "Servers on this host use the share."
_ACCESS_TYPE = "ip"
# Operations of other servers on the host may change the rule meanwhile.
_MAX_CHANGES = 5


@asynccontextmanager
async def share_errors() -> AsyncIterator[None]:
    """Turn refusals of the share service into Failed. An unreachable service is a transient error."""
    try:
        yield
    except ShareError as error:
        raise Failed(f"The share service refused: {error}", fault=f"{error.status}: {error}") from error


async def lock(op: Operation, share: ServerShare) -> None:
    """Lock the share, so that it cannot be deleted while the server has it."""
    auth = await op.services.identity.auth()
    async with share_errors():
        locks = await op.services.share.locks(share.share_id, auth)
        if all(found.lock_reason != _lock_reason(share) for found in locks):
            await op.services.share.lock(share.share_id, _lock_reason(share), auth)


async def unlock(op: Operation, share: ServerShare) -> None:
    auth = await op.services.identity.auth()
    async with share_errors():
        for found in await op.services.share.locks(share.share_id, auth):
            if found.lock_reason == _lock_reason(share):
                await op.services.share.unlock(found.id, auth)


async def update_access(op: Operation, share: ServerShare) -> None:
    """Create the access rule of the host if a server of the host needs it, and delete it if none does.

    The rows are read again after every change, because operations of other servers may have changed them meanwhile.
    """
    auth, client = await op.services.identity.auth(), op.services.share
    async with share_errors():
        for _ in range(_MAX_CHANGES):
            rule, needed = await find_access(op, share), await model.needs_access(op.db, share)
            if rule is None and needed:
                await client.allow_access(share.share_id, _ACCESS_TYPE, share.access_to, _RULE_REASON, auth)
            elif rule is not None and not needed and rule.state != "denying":
                await client.deny_access(share.share_id, rule.id, auth)
            else:
                return


async def find_access(op: Operation, share: ServerShare) -> AccessRule | None:
    """The access rule of the server's host; None also if the share is deleted."""
    auth = await op.services.identity.auth()
    try:
        return await op.services.share.access_rule(share.share_id, _ACCESS_TYPE, share.access_to, auth)
    except ShareError as error:
        if error.status == 404:
            return None
        raise


async def set_shares(op: Operation, server_id: str, *, also: ServerShare | None = None) -> SetShares:
    """The command that gives the guest the server's attached shares, and one more."""
    attached = [share for share in await model.of_server(op.db, server_id) if share.status == model.ATTACHED]
    if also is not None and all(share.id != also.id for share in attached):
        attached.append(also)
    return SetShares(guest_id=server_id, shares=model.messages_of(attached))


async def release_all(op: Operation) -> None:
    """Unlock the shares of a deleted server's guest, and deny access."""
    for share in await model.of_server(op.db, str(op.server_id)):
        async with op.db.transaction() as tx:
            await model.set_status(tx, share.id, model.DETACHING)
        await update_access(op, share)
        await unlock(op, share)


def _lock_reason(share: ServerShare) -> str:
    return f"Server {share.server_id} uses the share."
