"""Routes of transfers: a project offers a volume, and another project with the key accepts it.

The routes exist at two paths. The bodies of the older path have no `no_snapshots`.
"""

from __future__ import annotations

from typing import Any

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden, NotFound
from kilonova.http.parameter_types import BOOLEAN, UUID, Schema, is_true, request_body
from kilonova.ids import new_id
from kilonova.store import Reader, Row, Transaction
from kilonova.volume import filters, paging
from kilonova.volume.api import api
from kilonova.volume.quotas import model as quotas
from kilonova.volume.transfers import model, views
from kilonova.volume.types import model as types
from kilonova.volume.volumes import model as volumes
from kilonova.volume.volumes import states

__all__ = ["views"]

OLD, NEW = "/os-volume-transfer", "/volume-transfers"
SHOW, ACCEPT, DELETE = "volume:get_transfer", "volume:accept_transfer", "volume:delete_transfer"
CREATE, LIST = "volume:create_transfer", "volume:get_all_transfers"
PAGED = "transfers are sorted, paged and filtered"
_SORT_KEYS = ("id", "name", "volume_id", "created_at")
_FILTERS = ("id", "name", "volume_id")
_NAME: Schema = {"type": ["string", "null"], "maxLength": 255}
_OLD_CREATE_BODY = request_body("transfer", {"volume_id": UUID, "name": _NAME}, ["volume_id"])
_CREATE_BODY = request_body("transfer", {"volume_id": UUID, "name": _NAME, "no_snapshots": BOOLEAN}, ["volume_id"])
_ACCEPT_BODY = request_body("accept", {"auth_key": {"type": "string", "minLength": 1, "maxLength": 255}}, ["auth_key"])


def _declare(path: str, create_body: dict[str, Any]) -> None:
    one = f"{path}/{{transfer_id}}"
    listed = {"policy": LIST, "query": paging.QUERY}
    created, shown = ("transfer", "new transfer", False), ("transfer", "transfer", False)
    brief, detailed = ("transfers", "transfer brief", True), ("transfers", "transfer", True)
    accepted = ("transfer", "transfer brief", False)
    api.route("POST", path, checks=[CREATE], body=create_body, query={}, status=202, shows=created)(create)
    api.route("GET", path, shows=brief, **listed)(index)
    api.route("GET", f"{path}/detail", shows=detailed, **listed)(detail)
    api.route("GET", one, checks=[SHOW], query={}, shows=shown)(show)
    api.route("DELETE", one, checks=[DELETE], query={}, status=202)(delete)
    api.route("POST", f"{one}/accept", policy=ACCEPT, body=_ACCEPT_BODY, query={}, status=202, shows=accepted)(accept)


async def create(ctx: Context) -> Response:
    """Create a transfer of a volume to another project."""
    body = ctx.body["transfer"]
    key = model.new_key()
    async with ctx.db.transaction() as tx:
        volume = await volumes.find(ctx, tx, body["volume_id"], rule=CREATE, lock=True)
        states.check(volume, "transfer")
        await volumes.check_detached(tx, volume["id"])
        no_snapshots = is_true(body.get("no_snapshots", False))
        if not no_snapshots:
            _check_snapshots(await model.lock_snapshots(tx, volume["id"]))
        values = {
            "id": new_id(),
            "volume_id": volume["id"],
            "project_id": volume["project_id"],
            "name": body.get("name"),
            "no_snapshots": no_snapshots,
            "created_at": ctx.now,
        }
        row = await model.create(tx, values, key)
        await volumes.set_status(tx, volume["id"], states.AWAITING_TRANSFER)
    return Response({"transfer": ctx.render("new transfer", {**row, "auth_key": key})})


async def index(ctx: Context) -> Response:
    """List transfers."""
    return await _list(ctx, "", "transfer brief")


async def detail(ctx: Context) -> Response:
    """List transfers in detail."""
    return await _list(ctx, "/detail", "transfer")


async def show(ctx: Context, transfer_id: str) -> Response:
    """Show a transfer."""
    return Response({"transfer": ctx.render("transfer", await _find(ctx, ctx.db, transfer_id, SHOW))})


async def delete(ctx: Context, transfer_id: str) -> None:
    """Delete a transfer."""
    async with ctx.db.transaction() as tx:
        row = await _find(ctx, tx, transfer_id, DELETE)
        volume = await _delete(tx, row)
        if volume["status"] == states.AWAITING_TRANSFER:
            await volumes.set_status(tx, volume["id"], states.AVAILABLE)


async def accept(ctx: Context, transfer_id: str) -> Response:
    """Accept a transfer."""
    project_id = ctx.token.project_id
    if project_id is None:
        raise Forbidden("The token must be scoped to a project to accept a volume.")
    async with ctx.db.transaction() as tx:
        row = await model.get(tx, transfer_id)
        if row is None:
            raise _not_found(transfer_id)
        if not model.has_key(row, ctx.body["accept"]["auth_key"]):
            raise BadRequest(f"Invalid auth key: Attempt to transfer {transfer_id} with invalid auth key.")
        volume = await _delete(tx, row)
        if volume["status"] != states.AWAITING_TRANSFER:
            raise BadRequest(
                f"Invalid volume: Volume {volume['id']} status must be {states.AWAITING_TRANSFER} to be accepted, but"
                f" the current status is: {volume['status']}."
            )
        await _change_owner(ctx, tx, volume, project_id, with_snapshots=not row["no_snapshots"])
    return Response({"transfer": ctx.render("transfer brief", row)})


async def _change_owner(ctx: Context, tx: Transaction, volume: Row, project_id: str, *, with_snapshots: bool) -> None:
    if await types.get(tx, volume["type_id"], ctx.token) is None:
        raise BadRequest(f"Invalid volume: this project has no access to volume type {volume['type_name']}.")
    snapshots = await model.lock_snapshots(tx, volume["id"]) if with_snapshots else []
    _check_snapshots(snapshots)
    if project_id != volume["project_id"]:
        await quotas.check(
            tx,
            project_id,
            volume["type_name"],
            config=ctx.services.config,
            volumes=1,
            gigabytes=volume["size"] + sum(snapshot["size"] for snapshot in snapshots),
            snapshots=len(snapshots),
            size=volume["size"],
        )
    await model.change_owner(tx, volume["id"], project_id, ctx.token.user_id, ctx.now, with_snapshots=with_snapshots)
    await volumes.set_status(tx, volume["id"], states.AVAILABLE)


async def _delete(tx: Transaction, row: Row) -> Row:
    """Lock the volume and delete the transfer. Raises 404 if another request was faster."""
    volume = await volumes.get(tx, row["volume_id"], lock=True)
    if volume is None or not await model.delete(tx, row["id"]):
        raise _not_found(row["id"])
    return volume


async def _list(ctx: Context, suffix: str, view: str) -> Response:
    path = (OLD if ctx.route.path.startswith(OLD) else NEW) + suffix
    rows = await model.of_project(ctx.db, None if filters.all_projects(ctx, LIST) else ctx.token.project_id or "")
    links: list[dict[str, Any]] = []
    if ctx.has_behaviour(PAGED):
        requested = {key: value for key in _FILTERS if (value := ctx.query_one(key)) is not None}
        rows = [row for row in rows if all(row[key] == value for key, value in requested.items())]
        rows, links = paging.page(ctx, rows, path, _SORT_KEYS)
    shown: dict[str, Any] = {"transfers": [ctx.render(view, row) for row in rows]}
    return Response({**shown, "transfers_links": links} if links else shown)


async def _find(ctx: Context, reader: Reader, transfer_id: str, rule: str) -> Row:
    row = await model.get(reader, transfer_id)
    if row is None or not ctx.may(SHOW, {"project_id": row["project_id"]}):
        raise _not_found(transfer_id)
    ctx.authorize(rule, {"project_id": row["project_id"]})
    return row


def _check_snapshots(snapshots: list[Row]) -> None:
    for snapshot in snapshots:
        if snapshot["status"] != "available":
            raise BadRequest(
                f"Invalid volume: its snapshot {snapshot['id']} must be available to be transferred, but the current"
                f" status is: {snapshot['status']}."
            )


def _not_found(transfer_id: str) -> NotFound:
    return NotFound(f"Transfer {transfer_id} could not be found.")


_declare(OLD, _OLD_CREATE_BODY)
_declare(NEW, _CREATE_BODY)
