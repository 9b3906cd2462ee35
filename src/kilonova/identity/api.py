"""The Identity API: where it is mounted, how it writes errors, and its links."""

from __future__ import annotations

from typing import Any

from kilonova.http import Api, Context
from kilonova.http.errors import HttpError

Json = dict[str, Any]


def fault(error: HttpError, request_id: str) -> Json:
    return {"error": {"code": error.status, "message": error.message, "title": error.title}}


api = Api("identity", prefix="/identity", errors=fault, accepts_expired_tokens=False)


def link(ctx: Context, path: str) -> str:
    return f"{ctx.base_url()}/v3/{path}"


def list_links(ctx: Context, path: str, next_link: str | None = None) -> Json:
    return {"self": link(ctx, path), "previous": None, "next": next_link}
