"""Protects servers of other projects: users attach volumes only to servers that they may see."""

from __future__ import annotations

from kilonova.http import Context
from kilonova.http.client import Unreachable
from kilonova.http.errors import NotFound, Unavailable
from kilonova.volume.compute_client import ComputeError


async def check_server(ctx: Context, server_id: str | None) -> None:
    """Refuse (404) a server that the caller may not see. Services and administrators may name any.

    Must run outside a transaction.
    """
    if server_id is None or ctx.may("service_or_admin"):
        return
    try:
        visible = await ctx.services.compute.has_server(server_id, ctx.auth_token)
    except (Unreachable, ComputeError):
        raise Unavailable("Compute is unavailable, so the server cannot be checked; try again.") from None
    if not visible:
        raise NotFound(f"Server {server_id} could not be found.")
