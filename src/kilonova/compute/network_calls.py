"""Requests to the network service with the caller's token. Its errors become the ones of the old compute API."""

from __future__ import annotations

from typing import Any

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden, HttpError, NotFound
from kilonova.network.client import NetworkError

Item = dict[str, Any]
# Compute's errors for conflicts at the network service, by its error type and else by status.
_ERROR_BY_KIND: dict[str, type[HttpError]] = {
    "OverQuota": Forbidden,
    "IpAddressGenerationFailure": NotFound,
    "ExternalIpAddressExhausted": NotFound,
}
_ERROR_BY_STATUS: dict[int, type[HttpError]] = {403: Forbidden, 404: NotFound, 409: BadRequest}


async def call(ctx: Context, method: str, path: str, json: Any = None) -> Any:
    try:
        return await ctx.services.network.request(method, path, ctx.auth_token, json)
    except NetworkError as error:
        kind = _ERROR_BY_KIND.get(error.kind) or _ERROR_BY_STATUS.get(error.status)
        if kind is None:
            raise
        raise kind(str(error)) from None


async def list_items(ctx: Context, plural: str, **filters: str) -> list[Item]:
    return await ctx.services.network.items(plural, ctx.auth_token, list(filters.items()))


def own_project_filter(ctx: Context) -> dict[str, str]:
    """The filter for resources of the caller's project; no filter for a token without a project."""
    return {"project_id": ctx.token.project_id} if ctx.token.project_id else {}
