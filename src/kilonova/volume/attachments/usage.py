"""Protects attachments of servers: only compute may delete them, because the guest would go on writing."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.client import Unreachable
from kilonova.http.errors import Conflict, Unavailable
from kilonova.identity.client import IdentityError
from kilonova.volume.attachments.model import Attachment
from kilonova.volume.compute_client import ComputeError


async def check_unused(ctx: Context, attachment: Attachment) -> None:
    """Refuse (409) users to delete the attachment of a server that uses it. Must run outside a transaction."""
    if attachment.server_id is None or "service" in ctx.token.roles:
        return
    try:
        token = await ctx.services.identity.token()
        used = await ctx.services.compute.attachment_of(attachment.server_id, attachment.volume_id, token)
    except (Unreachable, IdentityError, ComputeError):
        raise Unavailable("Compute is unavailable, so the use of the volume cannot be checked; try again.") from None
    # Another connected attachment may belong to the destination host of a move.
    if used is not None and (used == attachment.id or attachment.connector is not None):
        raise Conflict(f"Detach volume from instance {attachment.server_id} using the Compute API")
