"""Only compute takes a volume from a server that has it: whose guest would go on to write to it, unseen."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.client import Unreachable
from kilonova.http.errors import Conflict, Unavailable
from kilonova.identity.client import IdentityError
from kilonova.store import Row
from kilonova.volume.compute import ComputeError


async def check_unused(ctx: Context, row: Row) -> None:
    """Refuse (409) to take the attachment from a server, unless another service asks. For outside transactions."""
    if row["server_id"] is None or "service" in ctx.token.roles:
        return
    try:
        token = await ctx.services.identity.token()
        used = await ctx.services.compute.attachment_of(row["server_id"], row["volume_id"], token)
    except (Unreachable, IdentityError, ComputeError):
        raise Unavailable("Compute cannot be asked for the moment whether the volume is in use; try again.") from None
    # Another one that is connected may be that of a host to which the server moves.
    if used is not None and (used == row["id"] or row["connector"] is not None):
        raise Conflict(f"Detach volume from instance {row['server_id']} using the Compute API")
