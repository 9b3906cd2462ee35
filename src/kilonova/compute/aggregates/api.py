"""Routes of aggregates."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from kilonova.compute.aggregates import model, schemas, views, zone_checks
from kilonova.compute.aggregates.model import Aggregate
from kilonova.compute.api import api
from kilonova.compute.zones.model import INTERNAL
from kilonova.hosts.registry import COMPUTE
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, HttpError, NotFound
from kilonova.placement import mirror
from kilonova.store import Transaction

__all__ = ["views"]

RULE = "os_compute_api:os-aggregates:"
ONE = "/os-aggregates/{aggregate_id}"
ACTION = f"{ONE}/action"
SHOWS = ("aggregate", "aggregate", False)
_NUMBER = re.compile(r"-?[0-9]+")


@api.route("GET", "/os-aggregates", policy=RULE + "index", query={}, shows=("aggregates", "aggregate", True))
async def index(ctx: Context) -> Response:
    """List aggregates."""
    found = await model.list_all(ctx.db)
    return Response({"aggregates": await ctx.render_all("aggregate", found)})


@api.route("GET", ONE, policy=RULE + "show", query={}, shows=SHOWS)
async def show(ctx: Context, aggregate_id: str) -> Response:
    """Show an aggregate."""
    aggregate = await model.get(ctx.db, _parse_id(aggregate_id))
    return _shown(ctx, aggregate, aggregate_id)


@api.route(
    "POST",
    "/os-aggregates",
    policy=RULE + "create",
    body=schemas.CREATE,
    query={},
    shows=("aggregate", "new aggregate", False),
)
async def create(ctx: Context) -> Response:
    """Create an aggregate; with a zone it is also an availability zone."""
    name, zone = ctx.body["aggregate"]["name"], ctx.body["aggregate"].get("availability_zone")
    async with ctx.db.transaction() as tx:
        await tx.lock(model.LOCK)
        await _check_name(tx, name)
        aggregate = await model.create(tx, name, {} if zone is None else {model.ZONE: zone})
    return Response({"aggregate": ctx.render("new aggregate", aggregate)})


@api.route("PUT", ONE, policy=RULE + "update", body=schemas.UPDATE, query={}, shows=SHOWS)
async def update(ctx: Context, aggregate_id: str) -> Response:
    """Change an aggregate's name or zone."""
    body = ctx.body["aggregate"]
    async with ctx.db.transaction() as tx:
        aggregate = await _locked(tx, aggregate_id)
        if "name" in body and body["name"].strip() != aggregate.name:
            await _check_name(tx, body["name"].strip())
            await model.rename(tx, aggregate, body["name"].strip())
        if model.ZONE in body:
            await _set_metadata(ctx, tx, aggregate, {model.ZONE: body[model.ZONE]}, "update")
        await model.touch(tx, aggregate)
        aggregate = await _locked(tx, aggregate_id)
    return _shown(ctx, aggregate, aggregate_id)


@api.route("DELETE", ONE, policy=RULE + "delete", query={})
async def delete(ctx: Context, aggregate_id: str) -> None:
    """Delete an aggregate that has no hosts."""
    async with ctx.db.transaction() as tx:
        aggregate = await _locked(tx, aggregate_id)
        if aggregate.hosts:
            raise BadRequest(_refusal("delete", aggregate, "it still has hosts"))
        await model.delete(tx, aggregate)


@api.action("add_host", ACTION, policy=RULE + "add_host", body=schemas.MEMBER, query={}, shows=SHOWS)
async def add_host(ctx: Context, aggregate_id: str) -> Response:
    """Add a host to an aggregate."""
    host = ctx.body["add_host"]["host"]
    async with ctx.db.transaction() as tx:
        aggregate = await _locked(tx, aggregate_id)
        await _check_host(tx, host)
        if host in aggregate.hosts:
            raise Conflict(f"Aggregate {aggregate.id} already has host {host}.")
        _check_zone(aggregate.metadata.get(model.ZONE), [host], Conflict)
        async with _checking_zones(ctx, tx, aggregate, [host], Conflict, "add_host to"):
            await model.add_hosts(tx, aggregate, [host])
        aggregate = await _locked(tx, aggregate_id)
    return _shown(ctx, aggregate, aggregate_id)


@api.action("remove_host", ACTION, policy=RULE + "remove_host", body=schemas.MEMBER, query={}, shows=SHOWS)
async def remove_host(ctx: Context, aggregate_id: str) -> Response:
    """Remove a host from an aggregate."""
    host = ctx.body["remove_host"]["host"]
    async with ctx.db.transaction() as tx:
        aggregate = await _locked(tx, aggregate_id)
        if host not in aggregate.hosts:
            await _check_host(tx, host)
            raise NotFound(f"Aggregate {aggregate.id} has no host {host}.")
        async with _checking_zones(ctx, tx, aggregate, [host], Conflict, "remove_host from"):
            await model.remove_hosts(tx, aggregate, [host])
        aggregate = await _locked(tx, aggregate_id)
    return _shown(ctx, aggregate, aggregate_id)


@api.action("set_metadata", ACTION, policy=RULE + "set_metadata", body=schemas.SET_METADATA, query={}, shows=SHOWS)
async def set_metadata(ctx: Context, aggregate_id: str) -> Response:
    """Merge keys into an aggregate's metadata; null removes a key."""
    values = ctx.body["set_metadata"]["metadata"]
    _check_ratios(values)
    async with ctx.db.transaction() as tx:
        aggregate = await _locked(tx, aggregate_id)
        await _set_metadata(ctx, tx, aggregate, values, "set_metadata of")
        await model.touch(tx, aggregate)
        aggregate = await _locked(tx, aggregate_id)
    return _shown(ctx, aggregate, aggregate_id)


@api.route("POST", f"{ONE}/images", policy="compute:aggregates:images", body=schemas.IMAGES, query={}, status=202)
async def cache_images(ctx: Context, aggregate_id: str) -> None:
    """Request image caching on the hosts of an aggregate. It is only validated: hosts fetch images when needed."""
    images = [entry["id"] for entry in ctx.body["cache"]]
    if len(set(images)) != len(images):
        raise BadRequest("Invalid input for field/attribute cache: an image appears twice.")
    if await model.get(ctx.db, _parse_id(aggregate_id)) is None:
        raise _missing(aggregate_id)
    for image in images:
        found = await ctx.services.image.show(image, ctx.auth_token)
        if found is None:
            raise BadRequest(f"Image {image} could not be found.")
        if found.status != "active":
            raise BadRequest(f"Image {image} is not active.")


async def _set_metadata(
    ctx: Context, tx: Transaction, aggregate: Aggregate, values: Mapping[str, str | None], action: str
) -> None:
    if model.ZONE not in values:
        await model.set_metadata(tx, aggregate, values)
        return
    _check_zone(values[model.ZONE], aggregate.hosts, BadRequest)
    async with _checking_zones(ctx, tx, aggregate, aggregate.hosts, BadRequest, action):
        await model.set_metadata(tx, aggregate, values)


@asynccontextmanager
async def _checking_zones(
    ctx: Context, tx: Transaction, aggregate: Aggregate, hosts: Sequence[str], refusal: type[HttpError], action: str
) -> AsyncIterator[None]:
    """Check at the end of the block that its change of these hosts' zones is allowed."""
    try:
        zones = await zone_checks.zones_before_change(tx, hosts)
        yield
        await zone_checks.check(tx, zones, _default_zone(ctx))
    except zone_checks.ZoneConflict as reason:
        raise refusal(_refusal(action, aggregate, str(reason))) from None


async def _locked(tx: Transaction, aggregate_id: str) -> Aggregate:
    await tx.lock(model.LOCK)
    aggregate = await model.get(tx, _parse_id(aggregate_id))
    if aggregate is None:
        raise _missing(aggregate_id)
    return aggregate


async def _check_name(tx: Transaction, name: str) -> None:
    if await model.name_exists(tx, name):
        raise Conflict(f"Aggregate {name} already exists.")


async def _check_host(tx: Transaction, host: str) -> None:
    sql = "SELECT id FROM services WHERE host = $1 AND program = $2"
    if await tx.fetch_value(sql, host, COMPUTE) is None:
        raise NotFound(f"Compute host {host} could not be found.")


def _check_zone(zone: str | None, hosts: Sequence[str], refusal: type[HttpError]) -> None:
    """The zone of internal services is not shown to users, so no compute host may be in it."""
    if zone == INTERNAL and hosts:
        raise refusal(f"{INTERNAL} is the zone of internal services: no compute host can be in it.")


def _check_ratios(metadata: Mapping[str, str | None]) -> None:
    for key in mirror.RATIO_CLASSES.keys() & metadata.keys():
        value = metadata[key]
        if value is not None and not _is_ratio(value):
            raise BadRequest(f"Invalid input for field/attribute metadata.{key}: {value!r} is not a number above 0.")


def _is_ratio(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _parse_id(aggregate_id: str) -> int:
    if not aggregate_id.isascii() or not _NUMBER.fullmatch(aggregate_id):
        raise BadRequest(f"Invalid aggregate id {aggregate_id[:80]!r}: it must be an integer.")
    # Ids have fewer digits, and the databases refuse larger integers.
    return int(aggregate_id) if len(aggregate_id) < 10 else -1


def _missing(aggregate_id: str) -> NotFound:
    return NotFound(f"Aggregate {aggregate_id[:80]} could not be found.")


def _refusal(action: str, aggregate: Aggregate, reason: str) -> str:
    return f"Cannot {action} aggregate {aggregate.id}. Reason: {reason}."


def _shown(ctx: Context, aggregate: Aggregate | None, aggregate_id: str) -> Response:
    if aggregate is None:
        raise _missing(aggregate_id)
    return Response({"aggregate": ctx.render("aggregate", aggregate)})


def _default_zone(ctx: Context) -> str:
    return ctx.services.config.scheduler.default_zone
