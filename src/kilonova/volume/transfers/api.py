"""Routes of transfers: a project offers a volume, and another project with the key accepts it.

The routes exist at two paths. The bodies of the older path have no `no_snapshots`.
"""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden, NotFound
from kilonova.http.parameter_types import BOOLEAN, UUID, Schema, is_true, request_body
from kilonova.store import Reader, Transaction
from kilonova.volume import filters, paging
from kilonova.volume.api import api
from kilonova.volume.quotas import model as quotas
from kilonova.volume.snapshots.model import Snapshot
from kilonova.volume.transfers import model, views
from kilonova.volume.transfers.model import Transfer
from kilonova.volume.types import model as types
from kilonova.volume.volumes import model as volumes
from kilonova.volume.volumes import states
from kilonova.volume.volumes.model import Volume

__all__ = ["views"]

OLD, NEW = "/os-volume-transfer", "/volume-transfers"
SHOW, ACCEPT, DELETE = "volume:get_transfer", "volume:accept_transfer", "volume:delete_transfer"
CREATE, LIST = "volume:create_transfer", "volume:get_all_transfers"
PAGED = api.behaviour("transfers are sorted, paged and filtered")
_SORT_KEYS = ("id", "name", "volume_id", "created_at")
_FILTERS = ("id", "name", "volume_id")
_NAME: Schema = {"type": ["string", "null"], "maxLength": 255}
_OLD_CREATE_BODY = request_body("transfer", {"volume_id": UUID, "name": _NAME}, ["volume_id"])
_CREATE_BODY = request_body("transfer", {"volume_id": UUID, "name": _NAME, "no_snapshots": BOOLEAN}, ["volume_id"])
_ACCEPT_BODY = request_body("accept", {"auth_key": {"type": "string", "minLength": 1, "maxLength": 255}}, ["auth_key"])


def _declare(path: str, create_body: Schema) -> None:
    one = f"{path}/{{transfer_id}}"
    created, shown = ("transfer", "new transfer", False), ("transfer", "transfer", False)
    brief, detailed = ("transfers", "transfer brief", True), ("transfers", "transfer", True)
    accepted = ("transfer", "transfer brief", False)
    api.route("POST", path, checks=[CREATE], body=create_body, query={}, status=202, shows=created)(create)
    api.route("GET", path, policy=LIST, query=paging.QUERY, shows=brief)(index)
    api.route("GET", f"{path}/detail", policy=LIST, query=paging.QUERY, shows=detailed)(detail)
    api.route("GET", one, checks=[SHOW], query={}, shows=shown)(show)
    api.route("DELETE", one, checks=[DELETE], query={}, status=202)(delete)
    api.route("POST", f"{one}/accept", policy=ACCEPT, body=_ACCEPT_BODY, query={}, status=202, shows=accepted)(accept)


async def create(ctx: Context) -> Response:
    """Create a transfer of a volume to another project."""
    body = ctx.body["transfer"]
    async with ctx.db.transaction() as tx:
        volume = await volumes.find(ctx, tx, body["volume_id"], rule=CREATE, lock=True)
        states.check(volume, "transfer")
        await volumes.check_detached(tx, volume.id)
        no_snapshots = is_true(body.get("no_snapshots", False))
        if not no_snapshots:
            _check_snapshots(await model.lock_snapshots(tx, volume.id))
        new = await model.create(tx, volume, body.get("name"), ctx.now, no_snapshots=no_snapshots)
        await volumes.set_status(tx, volume.id, states.AWAITING_TRANSFER)
    return Response({"transfer": ctx.render("new transfer", new)})


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
        transfer = await _find(ctx, tx, transfer_id, DELETE)
        volume = await _delete(tx, transfer)
        if volume.status == states.AWAITING_TRANSFER:
            await volumes.set_status(tx, volume.id, states.AVAILABLE)


async def accept(ctx: Context, transfer_id: str) -> Response:
    """Accept a transfer."""
    project_id = ctx.token.project_id
    if project_id is None:
        raise Forbidden("The token must be scoped to a project to accept a volume.")
    async with ctx.db.transaction() as tx:
        transfer = await model.get(tx, transfer_id)
        if transfer is None:
            raise _not_found(transfer_id)
        if not model.has_key(transfer, ctx.body["accept"]["auth_key"]):
            raise BadRequest(f"Invalid auth key: Attempt to transfer {transfer_id} with invalid auth key.")
        volume = await _delete(tx, transfer)
        if volume.status != states.AWAITING_TRANSFER:
            raise BadRequest(
                f"Invalid volume: Volume {volume.id} status must be {states.AWAITING_TRANSFER} to be accepted, but"
                f" the current status is: {volume.status}."
            )
        await _change_owner(ctx, tx, volume, project_id, with_snapshots=not transfer.no_snapshots)
    return Response({"transfer": ctx.render("transfer brief", transfer)})


async def _change_owner(
    ctx: Context, tx: Transaction, volume: Volume, project_id: str, *, with_snapshots: bool
) -> None:
    type_name = await volumes.type_name(tx, volume)
    if await types.get(tx, volume.type_id, ctx.token) is None:
        raise BadRequest(f"Invalid volume: this project has no access to volume type {type_name}.")
    snapshots = await model.lock_snapshots(tx, volume.id) if with_snapshots else []
    _check_snapshots(snapshots)
    if project_id != volume.project_id:
        await quotas.check(
            tx,
            project_id,
            type_name,
            config=ctx.services.config,
            volumes=1,
            gigabytes=volume.size + sum(snapshot.size for snapshot in snapshots),
            snapshots=len(snapshots),
            size=volume.size,
        )
    await model.change_owner(tx, volume.id, project_id, ctx.token.user_id, ctx.now, with_snapshots=with_snapshots)
    await volumes.set_status(tx, volume.id, states.AVAILABLE)


async def _delete(tx: Transaction, transfer: Transfer) -> Volume:
    """Lock the volume and delete the transfer. Raises 404 if another request was faster."""
    volume = await volumes.get(tx, transfer.volume_id, lock=True)
    if volume is None or not await model.delete(tx, transfer.id):
        raise _not_found(transfer.id)
    return volume


async def _list(ctx: Context, suffix: str, view: str) -> Response:
    path = (OLD if ctx.route.path.startswith(OLD) else NEW) + suffix
    found = await model.of_project(ctx.db, None if filters.all_projects(ctx, LIST) else ctx.token.project_id or "")
    links: list[dict[str, str]] = []
    if ctx.has_behaviour(PAGED):
        requested = {key: value for key in _FILTERS if (value := ctx.query_one(key)) is not None}
        found = [each for each in found if all(getattr(each, key) == value for key, value in requested.items())]
        found, links = paging.page(ctx, found, path, _SORT_KEYS)
    shown: dict[str, object] = {"transfers": await ctx.render_all(view, found)}
    return Response({**shown, "transfers_links": links} if links else shown)


async def _find(ctx: Context, reader: Reader, transfer_id: str, rule: str) -> Transfer:
    transfer = await model.get(reader, transfer_id)
    if transfer is None or not ctx.may(SHOW, {"project_id": transfer.project_id}):
        raise _not_found(transfer_id)
    ctx.authorize(rule, {"project_id": transfer.project_id})
    return transfer


def _check_snapshots(snapshots: list[Snapshot]) -> None:
    for snapshot in snapshots:
        if snapshot.status != "available":
            raise BadRequest(
                f"Invalid volume: its snapshot {snapshot.id} must be available to be transferred, but the current"
                f" status is: {snapshot.status}."
            )


def _not_found(transfer_id: str) -> NotFound:
    return NotFound(f"Transfer {transfer_id} could not be found.")


_declare(OLD, _OLD_CREATE_BODY)
_declare(NEW, _CREATE_BODY)
