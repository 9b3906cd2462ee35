"""Protects attachments of servers: only compute may delete them, because the guest would go on writing."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.client import Unreachable
from kilonova.http.errors import Conflict, Unavailable
from kilonova.identity.client import IdentityError
from kilonova.store import Row
from kilonova.volume.compute_client import ComputeError


async def check_unused(ctx: Context, row: Row) -> None:
    """Refuse (409) users to delete the attachment of a server that uses it. Must run outside a transaction."""
    if row["server_id"] is None or "service" in ctx.token.roles:
        return
    try:
        token = await ctx.services.identity.token()
        used = await ctx.services.compute.attachment_of(row["server_id"], row["volume_id"], token)
    except (Unreachable, IdentityError, ComputeError):
        raise Unavailable("Compute is unavailable, so the use of the volume cannot be checked; try again.") from None
    # Another connected attachment may belong to the destination host of a move.
    if used is not None and (used == row["id"] or row["connector"] is not None):
        raise Conflict(f"Detach volume from instance {row['server_id']} using the Compute API")
