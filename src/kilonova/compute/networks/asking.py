"""Asking the network service in the caller's name, and its refusals as compute's old clients know them."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden, HttpError, NotFound
from kilonova.network.client import NetworkError

Item = dict[str, Any]
# What the network service calls a conflict was another refusal here, else a request that cannot be met.
_KINDS: dict[str, type[HttpError]] = {
    "OverQuota": Forbidden,
    "IpAddressGenerationFailure": NotFound,
    "ExternalIpAddressExhausted": NotFound,
}
_STATUSES: dict[int, type[HttpError]] = {403: Forbidden, 404: NotFound, 409: BadRequest}


async def ask(ctx: Context, method: str, path: str, json: Any = None) -> Any:
    try:
        return await ctx.services.network.request(method, path, ctx.auth_token, json)
    except NetworkError as error:
        kind = _KINDS.get(error.kind) or _STATUSES.get(error.status)
        if kind is None:
            raise
        raise kind(str(error)) from None


async def listed(ctx: Context, plural: str, **filters: str) -> list[Item]:
    return await ctx.services.network.items(plural, ctx.auth_token, list(filters.items()))


def own(ctx: Context) -> dict[str, str]:
    """The filter for what is the caller's project's own. A token of the whole cloud has none and sees all."""
    return {"project_id": ctx.token.project_id} if ctx.token.project_id else {}
