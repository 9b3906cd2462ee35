"""Routes of compute services."""

from __future__ import annotations

from typing import Any

from kilonova import ids
from kilonova.compute.aggregates import model as aggregates
from kilonova.compute.api import api
from kilonova.compute.services import model, schemas, views
from kilonova.compute.zones import model as zones
from kilonova.hosts import registry
from kilonova.hosts.registry import COMPUTE
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.parameter_types import is_true
from kilonova.placement.mirror import HostInUse
from kilonova.store import Row, Transaction

RULE = "os_compute_api:os-services:"
UPDATE = RULE + "update"
BY_UUID = "services and hypervisors are named by uuid"


@api.route("GET", "/os-services", policy=RULE + "list", query=schemas.LIST, shows=("services", "service", True))
async def index(ctx: Context) -> Response:
    """List compute services."""
    rows = await zones.services(ctx.db, _default_zone(ctx), host=ctx.query_one("host"), program=ctx.query_one("binary"))
    return Response({"services": [ctx.render("service", row) for row in rows]})


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
    values = _values(ctx.body)
    async with ctx.db.transaction() as tx:
        row = await _locked(ctx, tx, service_id)
        if row["program"] != COMPUTE:
            raise BadRequest(
                f"Updating a {row['program']} service is not supported. Only {COMPUTE} services can be updated."
            )
        await _check_no_stale_guests(tx, row, values)
        row = await model.change(tx, row, **values)
        row["zone"] = await model.zone(tx, row, _default_zone(ctx))
    return Response({"service": ctx.render("service", row)})


@api.route("DELETE", "/os-services/{service_id}", policy=RULE + "delete", query={}, status=204)
async def delete(ctx: Context, service_id: str) -> None:
    """Delete a compute service that has no servers."""
    async with ctx.db.transaction() as tx:
        # Locked before the rows, in the order that registration of hosts and changes of aggregates use.
        await tx.lock(registry.LOCK)
        await tx.lock(aggregates.LOCK)
        row = await _locked(ctx, tx, service_id)
        if await model.has_servers(tx, row):
            raise Conflict(
                "Unable to delete compute service that is hosting instances. Migrate or delete the instances first."
            )
        try:
            await model.delete(tx, row)
        except HostInUse as reason:
            raise Conflict(f"Unable to delete compute service {service_id}: {reason}.") from None


@api.route("PUT", "/os-services/enable", policy=UPDATE, body=schemas.NAMED)
async def enable(ctx: Context) -> Response:
    """Enable a service by its host and binary."""
    row = await _change(ctx, disabled=False, disabled_reason=None)
    return _legacy_response(row, status=views.status(row))


@api.route("PUT", "/os-services/disable", policy=UPDATE, body=schemas.NAMED)
async def disable(ctx: Context) -> Response:
    """Disable a service by its host and binary."""
    row = await _change(ctx, disabled=True, disabled_reason=None)
    return _legacy_response(row, status=views.status(row))


@api.route("PUT", "/os-services/disable-log-reason", policy=UPDATE, body=schemas.NAMED_WITH_REASON)
async def disable_with_reason(ctx: Context) -> Response:
    """Disable a service by its host and binary, with a reason."""
    row = await _change(ctx, disabled=True, disabled_reason=ctx.body["disabled_reason"])
    return _legacy_response(row, status=views.status(row), disabled_reason=row["disabled_reason"])


@api.route("PUT", "/os-services/force-down", policy=UPDATE, body=schemas.NAMED_FORCED_DOWN)
async def force_down(ctx: Context) -> Response:
    """Force a service down, or end that."""
    row = await _change(ctx, forced_down=is_true(ctx.body["forced_down"]))
    return _legacy_response(row, forced_down=row["forced_down"])


def _values(body: dict[str, Any]) -> dict[str, Any]:
    reason = body.get("disabled_reason")
    if reason is not None and body.get("status") != "disabled":
        raise BadRequest("Specifying disabled_reason requires that status is set to 'disabled'.")
    values: dict[str, Any] = {}
    if "status" in body:
        values = {"disabled": body["status"] == "disabled", "disabled_reason": reason}
    if "forced_down" in body:
        values["forced_down"] = is_true(body["forced_down"])
    if not values:
        raise BadRequest("No updates were requested. Fields 'status' or 'forced_down' should be specified.")
    return values


async def _locked(ctx: Context, tx: Transaction, service_id: str) -> Row:
    """The service by its uuid, or before 2.53 by its integer id."""
    row = None
    if ctx.has_behaviour(BY_UUID):
        if not ids.is_uuid(service_id):
            raise BadRequest(f"Invalid uuid {service_id[:80]}")
        row = await model.lock(tx, "uuid", service_id)
    elif service_id.isdecimal() and len(service_id) < 19:
        row = await model.lock(tx, "id", int(service_id))
    if row is None:
        raise NotFound(f"Service {service_id} could not be found.")
    return row


async def _change(ctx: Context, **values: Any) -> Row:
    host, binary = ctx.body["host"], ctx.body["binary"]
    async with ctx.db.transaction() as tx:
        row = await model.lock_by_name(tx, host, binary)
        if row is None:
            raise NotFound(f"Could not find binary {binary} on host {host}.")
        await _check_no_stale_guests(tx, row, values)
        return await model.change(tx, row, **values)


async def _check_no_stale_guests(tx: Transaction, row: Row, values: dict[str, Any]) -> None:
    """Refuse to end forced_down while guests of evacuated servers may still run on the host."""
    if values.get("forced_down") is not False or row["program"] != COMPUTE:
        return
    guests = await model.count_stale_guests(tx, row["host"])
    if guests:
        what = "1 guest" if guests == 1 else f"{guests} guests"
        raise BadRequest(
            f"Compute service of {row['host']} cannot be up yet: {what} of servers that were moved away must be"
            " removed first. That happens as soon as the host responds."
        )


def _legacy_response(row: Row, **shown: Any) -> Response:
    return Response({"service": {"host": row["host"], "binary": row["program"], **shown}})


def _default_zone(ctx: Context) -> str:
    return ctx.services.config.scheduler.default_zone
