"""Routes of compute services."""

from __future__ import annotations

import re
from typing import Unpack

from kilonova import ids
from kilonova.compute.aggregates import model as aggregates
from kilonova.compute.api import api
from kilonova.compute.services import model, schemas, views
from kilonova.compute.services.model import Changes
from kilonova.compute.zones import model as zones
from kilonova.hosts import registry
from kilonova.hosts.registry import COMPUTE
from kilonova.hosts.service import Service
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.parameter_types import is_true
from kilonova.placement.mirror import HostInUse
from kilonova.store import Transaction

RULE = "os_compute_api:os-services:"
UPDATE = RULE + "update"
BY_UUID = api.behaviour("services and hypervisors are named by uuid")


@api.route("GET", "/os-services", policy=RULE + "list", query=schemas.LIST, shows=("services", "service", True))
async def index(ctx: Context) -> Response:
    """List compute services."""
    host, program = ctx.query_one("host"), ctx.query_one("binary")
    found = await zones.services(ctx.db, _default_zone(ctx), host=host, program=program)
    return Response({"services": await ctx.render_all("service", found)})


@api.route(
    "PUT",
    "/os-services/{service_id}",
    policy=UPDATE,
    body=schemas.UPDATE,
    query={},
    shows=("service", "service", False),
)
async def update(ctx: Context, service_id: str) -> Response:
    """Enable, disable or force down a compute service."""
    values = _values(ctx)
    async with ctx.db.transaction() as tx:
        service = await _locked(ctx, tx, service_id)
        if service.program != COMPUTE:
            raise BadRequest(
                f"Updating a {service.program} service is not supported. Only {COMPUTE} services can be updated."
            )
        await _check_no_stale_guests(tx, service, values)
        changed = await model.change(tx, service, **values)
        shown = zones.ZonedService(changed, await model.zone(tx, changed, _default_zone(ctx)))
    return Response({"service": ctx.render("service", shown)})


@api.route("DELETE", "/os-services/{service_id}", policy=RULE + "delete", query={}, status=204)
async def delete(ctx: Context, service_id: str) -> None:
    """Delete a compute service that has no servers."""
    async with ctx.db.transaction() as tx:
        # Locked before the rows, in the order that registration of hosts and changes of aggregates use.
        await tx.lock(registry.LOCK)
        await tx.lock(aggregates.LOCK)
        service = await _locked(ctx, tx, service_id)
        if await model.has_servers(tx, service):
            raise Conflict(
                "Unable to delete compute service that is hosting instances. Migrate or delete the instances first."
            )
        try:
            await model.delete(tx, service)
        except HostInUse as reason:
            raise Conflict(f"Unable to delete compute service {service_id}: {reason}.") from None


@api.route("PUT", "/os-services/enable", policy=UPDATE, body=schemas.NAMED)
async def enable(ctx: Context) -> Response:
    """Enable a service by its host and binary."""
    service = await _change(ctx, disabled=False, disabled_reason=None)
    return _legacy_response(service, status=views.status(service))


@api.route("PUT", "/os-services/disable", policy=UPDATE, body=schemas.NAMED)
async def disable(ctx: Context) -> Response:
    """Disable a service by its host and binary."""
    service = await _change(ctx, disabled=True, disabled_reason=None)
    return _legacy_response(service, status=views.status(service))


@api.route("PUT", "/os-services/disable-log-reason", policy=UPDATE, body=schemas.NAMED_WITH_REASON)
async def disable_with_reason(ctx: Context) -> Response:
    """Disable a service by its host and binary, with a reason."""
    service = await _change(ctx, disabled=True, disabled_reason=ctx.body["disabled_reason"])
    return _legacy_response(service, status=views.status(service), disabled_reason=service.disabled_reason)


@api.route("PUT", "/os-services/force-down", policy=UPDATE, body=schemas.NAMED_FORCED_DOWN)
async def force_down(ctx: Context) -> Response:
    """Force a service down, or end that."""
    service = await _change(ctx, forced_down=is_true(ctx.body["forced_down"]))
    return _legacy_response(service, forced_down=service.forced_down)


def _values(ctx: Context) -> Changes:
    body = ctx.body
    reason = body.get("disabled_reason")
    if reason is not None and body.get("status") != "disabled":
        raise BadRequest("Specifying disabled_reason requires that status is set to 'disabled'.")
    values: Changes = {}
    if "status" in body:
        values = {"disabled": body["status"] == "disabled", "disabled_reason": reason}
    if "forced_down" in body:
        values["forced_down"] = is_true(body["forced_down"])
    if not values:
        raise BadRequest("No updates were requested. Fields 'status' or 'forced_down' should be specified.")
    return values


async def _locked(ctx: Context, tx: Transaction, service_id: str) -> Service:
    """The service by its uuid, or before 2.53 by its integer id."""
    service = None
    if ctx.has_behaviour(BY_UUID):
        if not ids.is_uuid(service_id):
            raise BadRequest(f"Invalid uuid {service_id[:80]}")
        service = await model.lock(tx, "uuid", service_id)
    elif not re.fullmatch(r"\d{1,18}", service_id, re.ASCII):
        raise BadRequest(f"Invalid input for the service id: {service_id[:80]!r} is not an integer.")
    else:
        service = await model.lock(tx, "id", int(service_id))
    if service is None:
        raise NotFound(f"Service {service_id} could not be found.")
    return service


async def _change(ctx: Context, **values: Unpack[Changes]) -> Service:
    host, binary = ctx.body["host"], ctx.body["binary"]
    async with ctx.db.transaction() as tx:
        service = await model.lock_by_name(tx, host, binary)
        if service is None:
            raise NotFound(f"Could not find binary {binary} on host {host}.")
        await _check_no_stale_guests(tx, service, values)
        return await model.change(tx, service, **values)


async def _check_no_stale_guests(tx: Transaction, service: Service, values: Changes) -> None:
    """Refuse to end forced_down while guests of evacuated servers may still run on the host."""
    if values.get("forced_down") is not False or service.program != COMPUTE:
        return
    guests = await model.count_stale_guests(tx, service.host)
    if guests:
        what = "1 guest" if guests == 1 else f"{guests} guests"
        raise BadRequest(
            f"Compute service of {service.host} cannot be up yet: {what} of servers that were moved away must be"
            " removed first. That happens as soon as the host responds."
        )


def _legacy_response(service: Service, **shown: str | bool | None) -> Response:
    return Response({"service": {"host": service.host, "binary": service.program, **shown}})


def _default_zone(ctx: Context) -> str:
    return ctx.services.config.scheduler.default_zone
