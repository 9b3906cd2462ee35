"""Routes of trunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kilonova.http import Context, Response
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import policy_target, requested_project
from kilonova.network.errors import conflict
from kilonova.network.listing import Attribute, Listing, Query, select_fields
from kilonova.network.ports.api import load as load_port
from kilonova.network.resources import write_transaction
from kilonova.network.schemas import SHOW_QUERY, to_bool
from kilonova.network.trunks import model
from kilonova.network.trunks.model import Subport, Trunk
from kilonova.network.trunks.schemas import ADD_SUBPORTS, CREATE, REMOVE_SUBPORTS, UPDATE
from kilonova.store import Reader, Transaction


def _filter_by_status(query: Query, statuses: list[str]) -> None:
    query.add(f"CASE WHEN {model.IS_ACTIVE} THEN 'ACTIVE' ELSE 'DOWN' END = ANY({query.arg(statuses)})")


LISTING = Listing(
    Trunk,
    "trunks",
    {
        "name": Attribute("r.name"),
        "port_id": Attribute("r.port_id"),
        "admin_state_up": Attribute("r.admin_state_up", "boolean"),
    },
    {"status": _filter_by_status},
)


@api.route("GET", "/v2.0/trunks", policy="get_trunk", query=LISTING.query_schema)
async def index(ctx: Context) -> Response:
    """List the project's trunks."""
    shown = await _views(ctx.db, await LISTING.fetch_own_page(ctx, "get_trunk"))
    return Response(await LISTING.response_body(ctx, shown))


@api.route("GET", "/v2.0/trunks/{trunk_id}", checks=["get_trunk"], query=SHOW_QUERY)
async def show(ctx: Context, trunk_id: str) -> Response:
    """Show a trunk."""
    return Response({"trunk": select_fields(ctx, await _view(ctx.db, await _load(ctx, ctx.db, trunk_id)))})


@api.route("POST", "/v2.0/trunks", checks=["create_trunk"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create one or several trunks."""
    shown = []
    async with write_transaction(ctx) as tx:
        for body in ctx.body.get("trunks") or [ctx.body["trunk"]]:
            shown.append(await _view(tx, await _create(ctx, tx, body)))
    return Response({"trunks": shown} if "trunks" in ctx.body else {"trunk": shown[0]})


async def _create(ctx: Context, tx: Transaction, body: Mapping[str, Any]) -> Trunk:
    project_id = requested_project(ctx, body)
    ctx.authorize("create_trunk", policy_target(project_id))
    await _authorize_ports(ctx, tx, [body, *body.get("sub_ports", [])])
    return await model.create(tx, project_id, body, ctx.now)


async def _authorize_ports(ctx: Context, reader: Reader, bodies: Sequence[Mapping[str, Any]]) -> None:
    """Check that the caller may change the ports that these bodies name: a trunk changes its ports."""
    for body in bodies:
        port = await load_port(ctx, reader, body["port_id"])
        ctx.authorize("update_port", policy_target(port.project_id))


@api.route("PUT", "/v2.0/trunks/{trunk_id}", checks=["update_trunk"], body=UPDATE)
async def update(ctx: Context, trunk_id: str) -> Response:
    """Change a trunk."""
    body = ctx.body["trunk"]
    changes: dict[str, object] = {name: body[name] or "" for name in ("name", "description") if name in body}
    if "admin_state_up" in body:
        changes["admin_state_up"] = to_bool(body["admin_state_up"])
    async with write_transaction(ctx) as tx:
        trunk = await _lock(ctx, tx, trunk_id, "update_trunk")
        shown = await _view(tx, await resources.update(tx, trunk, changes, ctx.now))
    return Response({"trunk": shown})


@api.route("DELETE", "/v2.0/trunks/{trunk_id}", checks=["delete_trunk"], status=204)
async def delete(ctx: Context, trunk_id: str) -> Response:
    """Delete a trunk; refused while its parent port is bound."""
    async with write_transaction(ctx) as tx:
        await model.remove(tx, await _lock(ctx, tx, trunk_id, "delete_trunk"), ctx.now)
    return Response()


@api.route("GET", "/v2.0/trunks/{trunk_id}/get_subports", checks=["get_subports"])
async def list_subports(ctx: Context, trunk_id: str) -> Response:
    """List the subports of a trunk."""
    trunk = await _load(ctx, ctx.db, trunk_id)
    ctx.authorize("get_subports", policy_target(trunk.project_id))
    return Response({"sub_ports": _subport_views((await model.subports_of(ctx.db, [trunk_id]))[trunk_id])})


@api.route("PUT", "/v2.0/trunks/{trunk_id}/add_subports", checks=["add_subports"], body=ADD_SUBPORTS)
async def add_subports(ctx: Context, trunk_id: str) -> Response:
    """Add subports to a trunk. They follow the parent port to its host."""
    async with write_transaction(ctx) as tx:
        trunk = await _lock_enabled(ctx, tx, trunk_id, "add_subports")
        await _authorize_ports(ctx, tx, ctx.body["sub_ports"])
        await model.add_subports(tx, trunk, ctx.body["sub_ports"], ctx.now)
        shown = await _view(tx, await resources.update(tx, trunk, {}, ctx.now))
    return Response(shown)


@api.route("PUT", "/v2.0/trunks/{trunk_id}/remove_subports", checks=["remove_subports"], body=REMOVE_SUBPORTS)
async def remove_subports(ctx: Context, trunk_id: str) -> Response:
    """Remove subports from a trunk."""
    async with write_transaction(ctx) as tx:
        trunk = await _lock_enabled(ctx, tx, trunk_id, "remove_subports")
        await model.remove_subports(tx, trunk, [subport["port_id"] for subport in ctx.body["sub_ports"]], ctx.now)
        shown = await _view(tx, await resources.update(tx, trunk, {}, ctx.now))
    return Response(shown)


async def _load(ctx: Context, reader: Reader, trunk_id: str) -> Trunk:
    trunk = await resources.find(reader, Trunk, trunk_id)
    if trunk is None or not ctx.may("get_trunk", policy_target(trunk.project_id)):
        raise model.not_found(trunk_id)
    return trunk


async def _lock(ctx: Context, tx: Transaction, trunk_id: str, rule: str) -> Trunk:
    await _load(ctx, tx, trunk_id)
    trunk = await resources.lock(tx, Trunk, trunk_id)
    if trunk is None:
        raise model.not_found(trunk_id)
    ctx.authorize(rule, policy_target(trunk.project_id))
    return trunk


async def _lock_enabled(ctx: Context, tx: Transaction, trunk_id: str, rule: str) -> Trunk:
    trunk = await _lock(ctx, tx, trunk_id, rule)
    if not trunk.admin_state_up:
        raise conflict("TrunkDisabled", f"Trunk {trunk_id} is currently disabled.")
    return trunk


async def _view(reader: Reader, trunk: Trunk) -> dict[str, object]:
    return (await _views(reader, [trunk]))[0]


async def _views(reader: Reader, trunks: Sequence[Trunk]) -> list[dict[str, object]]:
    subports = await model.subports_of(reader, [trunk.id for trunk in trunks])
    active = await model.active_trunks(reader, trunks)
    return [
        {
            "id": trunk.id,
            "name": trunk.name,
            "port_id": trunk.port_id,
            "admin_state_up": trunk.admin_state_up,
            "status": "ACTIVE" if trunk.id in active else "DOWN",
            "sub_ports": _subport_views(subports[trunk.id]),
            **resources.standard_view(trunk),
        }
        for trunk in trunks
    ]


def _subport_views(subports: Sequence[Subport]) -> list[dict[str, object]]:
    names = ("port_id", "segmentation_type", "segmentation_id")
    return [{name: getattr(subport, name) for name in names} for subport in subports]
