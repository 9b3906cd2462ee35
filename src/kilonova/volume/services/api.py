"""Routes of the parts of the service, for operators."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.store import Row
from kilonova.volume.api import api
from kilonova.volume.services import extensions, hosts, model, pools, schemas, views, zones

__all__ = ["extensions", "hosts", "pools", "views", "zones"]

UPDATE = "volume_extension:services:update"


@api.route(
    "GET",
    "/os-services",
    policy="volume_extension:services:index",
    query=schemas.LIST,
    shows=("services", "volume service", True),
)
async def index(ctx: Context) -> Answer:
    """List the parts of the volume service."""
    host, program = ctx.query_one("host"), ctx.query_one("binary") or ctx.query_one("service")
    found = [
        part
        for part in await model.parts(ctx.db, ctx.services.config, ctx.now)
        if program in (None, part["program"]) and host in (None, part["host"], part["host"].partition("@")[0])
    ]
    return Answer({"services": [ctx.render("volume service", part) for part in found]})


@api.route("PUT", "/os-services/enable", policy=UPDATE, body=schemas.NAMED, query={})
async def enable(ctx: Context) -> Answer:
    """Enable a part of the volume service."""
    return _named(await _change(ctx, disabled=False), disabled_reason=None)


@api.route("PUT", "/os-services/disable", policy=UPDATE, body=schemas.NAMED, query={})
async def disable(ctx: Context) -> Answer:
    """Disable a part of the volume service: no volumes are made until it is enabled again."""
    return _named(await _change(ctx, disabled=True))


@api.route("PUT", "/os-services/disable-log-reason", policy=UPDATE, body=schemas.NAMED_WITH_REASON, query={})
async def disable_with_reason(ctx: Context) -> Answer:
    """Disable a part of the volume service, and say why."""
    reason = ctx.body["disabled_reason"].strip()
    return _named(await _change(ctx, disabled=True, reason=reason), disabled_reason=reason)


@api.route("PUT", "/os-services/freeze", policy=UPDATE, body=schemas.HOST, query={})
async def freeze(ctx: Context) -> Answer:
    """Refuse to freeze a back end."""
    raise _not_replicated()


@api.route("PUT", "/os-services/thaw", policy=UPDATE, body=schemas.HOST, query={})
async def thaw(ctx: Context) -> Answer:
    """Refuse to thaw a back end."""
    raise _not_replicated()


@api.route("PUT", "/os-services/failover_host", policy=UPDATE, body=schemas.HOST, query={})
async def fail_over(ctx: Context) -> Answer:
    """Refuse to fail over to another back end."""
    raise _not_replicated()


async def _change(ctx: Context, *, disabled: bool, reason: str | None = None) -> Row:
    host, program = ctx.body["host"], ctx.body.get("binary") or ctx.body["service"]
    async with ctx.db.transaction() as tx:
        for part in await model.parts(tx, ctx.services.config, ctx.now):
            if (part["host"], part["program"]) == (host, program):
                await model.change(tx, program, disabled, reason, ctx.now)
                return {**part, "disabled": disabled}
    raise NotFound(f"Service {program} could not be found on host {host}.")


def _named(part: Row, **more: Any) -> Answer:
    program = part["program"]
    known = {"host": part["host"], "service": program, "binary": program, "disabled": part["disabled"]}
    return Answer({**known, "status": views.status(part), **more})


def _not_replicated() -> BadRequest:
    return BadRequest("Invalid input received: the back end of this service is not replicated, so it has no fail-over.")
