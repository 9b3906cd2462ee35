"""Routes of transfers: a project offers a volume, and whoever has the key takes it over, once.

They stand at two paths, of which the older knows nothing of snapshots in its bodies.
"""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Forbidden, NotFound
from kilonova.http.pieces import is_true
from kilonova.ids import new_id
from kilonova.store import Reader, Row, Transaction
from kilonova.volume import filters, paging
from kilonova.volume.api import api
from kilonova.volume.quotas import model as quotas
from kilonova.volume.transfers import model, schemas, views
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


def _declare(path: str, create_body: dict[str, Any]) -> None:
    one = f"{path}/{{transfer_id}}"
    listed = {"policy": LIST, "query": paging.QUERY}
    new, shown = ("transfer", "new transfer", False), ("transfer", "transfer", False)
    brief, whole = ("transfers", "transfer brief", True), ("transfers", "transfer", True)
    taken = ("transfer", "transfer brief", False)
    api.route("POST", path, checks=[CREATE], body=create_body, query={}, status=202, shows=new)(create)
    api.route("GET", path, shows=brief, **listed)(index)
    api.route("GET", f"{path}/detail", shows=whole, **listed)(detail)
    api.route("GET", one, checks=[SHOW], query={}, shows=shown)(show)
    api.route("DELETE", one, checks=[DELETE], query={}, status=202)(delete)
    api.route("POST", f"{one}/accept", policy=ACCEPT, body=schemas.ACCEPT, query={}, status=202, shows=taken)(accept)


async def create(ctx: Context) -> Answer:
    """Offer a volume to another project."""
    asked = ctx.body["transfer"]
    key = model.new_key()
    async with ctx.db.transaction() as tx:
        volume = await volumes.find(ctx, tx, asked["volume_id"], rule=CREATE, lock=True)
        states.check(volume, "transfer")
        await volumes.check_detached(tx, volume["id"])
        no_snapshots = is_true(asked.get("no_snapshots", False))
        if not no_snapshots:
            _check_snapshots(await model.snapshots(tx, volume["id"]))
        values = {
            "id": new_id(),
            "volume_id": volume["id"],
            "project_id": volume["project_id"],
            "name": asked.get("name"),
            "no_snapshots": no_snapshots,
            "created_at": ctx.now,
        }
        row = await model.create(tx, values, key)
        await volumes.set_status(tx, volume["id"], states.AWAITING_TRANSFER)
    return Answer({"transfer": ctx.render("new transfer", {**row, "auth_key": key})})


async def index(ctx: Context) -> Answer:
    """List transfers."""
    return await _list(ctx, "", "transfer brief")


async def detail(ctx: Context) -> Answer:
    """List transfers in detail."""
    return await _list(ctx, "/detail", "transfer")


async def show(ctx: Context, transfer_id: str) -> Answer:
    """Show a transfer."""
    return Answer({"transfer": ctx.render("transfer", await _find(ctx, ctx.db, transfer_id, SHOW))})


async def delete(ctx: Context, transfer_id: str) -> None:
    """Withdraw the offer of a volume."""
    async with ctx.db.transaction() as tx:
        row = await _find(ctx, tx, transfer_id, DELETE)
        volume = await _end(tx, row)
        if volume["status"] == states.AWAITING_TRANSFER:
            await volumes.set_status(tx, volume["id"], states.AVAILABLE)


async def accept(ctx: Context, transfer_id: str) -> Answer:
    """Take over a volume."""
    project_id = ctx.token.project_id
    if project_id is None:
        raise Forbidden("A volume is taken over by a project: the token must be scoped to one.")
    async with ctx.db.transaction() as tx:
        row = await model.get(tx, transfer_id)
        if row is None:
            raise _missing(transfer_id)
        if not model.fits(row, ctx.body["accept"]["auth_key"]):
            raise BadRequest(f"Invalid auth key: Attempt to transfer {transfer_id} with invalid auth key.")
        volume = await _end(tx, row)
        if volume["status"] != states.AWAITING_TRANSFER:
            raise BadRequest(
                f"Invalid volume: Volume {volume['id']} status must be {states.AWAITING_TRANSFER} to be taken over, but"
                f" the current status is: {volume['status']}."
            )
        await _hand_over(ctx, tx, volume, project_id, with_snapshots=not row["no_snapshots"])
    return Answer({"transfer": ctx.render("transfer brief", row)})


async def _hand_over(ctx: Context, tx: Transaction, volume: Row, project_id: str, *, with_snapshots: bool) -> None:
    if await types.get(tx, volume["type_id"], ctx.token) is None:
        raise BadRequest(f"Invalid volume: volumes of type {volume['type_name']} are not for this project.")
    snapshots = await model.snapshots(tx, volume["id"]) if with_snapshots else []
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
    await model.hand_over(tx, volume["id"], project_id, ctx.token.user_id, ctx.now, with_snapshots=with_snapshots)
    await volumes.set_status(tx, volume["id"], states.AVAILABLE)


async def _end(tx: Transaction, row: Row) -> Row:
    """The transfer is over, for the first one who says so; its volume is held."""
    volume = await volumes.get(tx, row["volume_id"], lock=True)
    if volume is None or not await model.take(tx, row["id"]):
        raise _missing(row["id"])
    return volume


async def _list(ctx: Context, below: str, view: str) -> Answer:
    path = (OLD if ctx.route.path.startswith(OLD) else NEW) + below
    rows = await model.of_project(ctx.db, None if filters.everywhere(ctx, LIST) else ctx.token.project_id or "")
    links: list[dict[str, Any]] = []
    if ctx.behaves(PAGED):
        asked = {key: value for key in _FILTERS if (value := ctx.query_one(key)) is not None}
        rows = [row for row in rows if all(row[key] == value for key, value in asked.items())]
        rows, links = paging.page(ctx, rows, path, _SORT_KEYS)
    shown: dict[str, Any] = {"transfers": [ctx.render(view, row) for row in rows]}
    return Answer({**shown, "transfers_links": links} if links else shown)


async def _find(ctx: Context, reader: Reader, transfer_id: str, rule: str) -> Row:
    row = await model.get(reader, transfer_id)
    if row is None or not ctx.may(SHOW, {"project_id": row["project_id"]}):
        raise _missing(transfer_id)
    ctx.authorize(rule, {"project_id": row["project_id"]})
    return row


def _check_snapshots(snapshots: list[Row]) -> None:
    for snapshot in snapshots:
        if snapshot["status"] != "available":
            raise BadRequest(
                f"Invalid volume: its snapshot {snapshot['id']} must be available to go with it, but the current status"
                f" is: {snapshot['status']}."
            )


def _missing(transfer_id: str) -> NotFound:
    return NotFound(f"Transfer {transfer_id} could not be found.")


_declare(OLD, schemas.CREATE_OLD)
_declare(NEW, schemas.CREATE)
