"""Routes of snapshots."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import ANYTHING, is_true
from kilonova.ids import new_id
from kilonova.store import Transaction
from kilonova.store.insert import insert_row
from kilonova.volume.api import SNAPSHOT_ACTION, api
from kilonova.volume.quotas import model as quotas
from kilonova.volume.snapshots import metadata, model, schemas, views
from kilonova.volume.snapshots.model import ShownSnapshot, Snapshot
from kilonova.volume.snapshots.search import SEARCH
from kilonova.volume.volumes import model as volumes
from kilonova.volume.volumes import states
from kilonova.volume.volumes.model import Volume

__all__ = ["metadata", "views"]

RULE = "volume:"
CREATE, INDEX, UPDATE = RULE + "create_snapshot", RULE + "get_all_snapshots", RULE + "update_snapshot"
DELETE = RULE + "delete_snapshot"
RESET = "volume_extension:snapshot_admin_actions:reset_status"
FORCE_DELETE = "volume_extension:snapshot_admin_actions:force_delete"
REPORT = "volume_extension:snapshot_actions:update_snapshot_status"
SNAPSHOT = "/snapshots/{snapshot_id}"
UNFORCED = api.behaviour("snapshots of volumes in use need no force")


@api.route("GET", "/snapshots", policy=INDEX, query=schemas.LIST, shows=("snapshots", "snapshot brief", True))
async def index(ctx: Context) -> Response:
    """List snapshots."""
    return await SEARCH.response(ctx, "/snapshots", "snapshot brief", model.add_metadata)


@api.route("GET", "/snapshots/detail", policy=INDEX, query=schemas.LIST, shows=("snapshots", "snapshot", True))
async def detail(ctx: Context) -> Response:
    """List snapshots with their details."""
    return await SEARCH.response(ctx, "/snapshots/detail", "snapshot", model.add_metadata)


@api.route(
    "POST",
    "/snapshots",
    checks=[CREATE],
    body=schemas.CREATE,
    query={},
    status=202,
    shows=("snapshot", "snapshot brief", False),
)
async def create(ctx: Context) -> Response:
    """Create a snapshot of a volume."""
    from kilonova.volume.operations.create_snapshot import CreateSnapshot, SnapshotParams

    body = ctx.body["snapshot"]
    forced = ctx.has_behaviour(UNFORCED) or is_true(body.get("force"))
    async with ctx.db.transaction() as tx:
        volume = await volumes.find(ctx, tx, str(body["volume_id"]), rule=CREATE, lock=True)
        states.check(volume, "snapshot in-use" if forced else "snapshot")
        snapshot, metadata = _new(ctx, volume, body), body.get("metadata") or {}
        await quotas.check(
            tx,
            snapshot.project_id,
            await volumes.type_name(tx, volume),
            config=ctx.services.config,
            snapshots=1,
            gigabytes=snapshot.size,
        )
        await insert_row(tx, Snapshot.table, snapshot.encode())
        await model.set_metadata(tx, snapshot.id, metadata)
        params = SnapshotParams(snapshot.id)
        await volumes.begin_operation(ctx, tx, CreateSnapshot, snapshot.project_id, params)
    return Response({"snapshot": ctx.render("snapshot brief", ShownSnapshot(snapshot, metadata))})


@api.route("GET", SNAPSHOT, checks=[model.SHOW], query={}, shows=("snapshot", "snapshot", False))
async def show(ctx: Context, snapshot_id: str) -> Response:
    """Show a snapshot."""
    snapshot = await model.find(ctx, ctx.db, snapshot_id, rule=model.SHOW)
    (shown,) = await model.add_metadata(ctx.db, [snapshot])
    return Response({"snapshot": ctx.render("snapshot", shown)})


@api.route("PUT", SNAPSHOT, checks=[UPDATE], body=schemas.UPDATE, query={}, shows=("snapshot", "snapshot brief", False))
async def update(ctx: Context, snapshot_id: str) -> Response:
    """Update the name or the description of a snapshot."""
    body = ctx.body["snapshot"]
    # `name` takes precedence over the older `display_name`.
    values = {key.removeprefix("display_"): body[key] for key in sorted(body)}
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, snapshot_id, rule=UPDATE, lock=True)
        await model.change(tx, snapshot_id, values)
        snapshot = await model.find(ctx, tx, snapshot_id, rule=UPDATE)
        (shown,) = await model.add_metadata(tx, [snapshot])
    return Response({"snapshot": ctx.render("snapshot brief", shown)})


@api.route("DELETE", SNAPSHOT, checks=[DELETE], query={}, status=202)
async def delete(ctx: Context, snapshot_id: str) -> None:
    """Delete a snapshot."""
    async with ctx.db.transaction() as tx:
        snapshot = await model.find(ctx, tx, snapshot_id, rule=DELETE, lock=True)
        await model.check_deletable(tx, snapshot)
        await _delete(ctx, tx, snapshot)


@api.action("os-force_delete", at=SNAPSHOT_ACTION, checks=[FORCE_DELETE], body=ANYTHING, status=202)
async def force_delete(ctx: Context, snapshot_id: str) -> None:
    """Delete a snapshot in any status."""
    async with ctx.db.transaction() as tx:
        await _delete(ctx, tx, await model.find(ctx, tx, snapshot_id, rule=FORCE_DELETE, lock=True))


@api.action("os-reset_status", at=SNAPSHOT_ACTION, checks=[RESET], body=schemas.RESET, status=202)
async def reset_status(ctx: Context, snapshot_id: str) -> None:
    """Set the status of a snapshot."""
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, snapshot_id, rule=RESET, lock=True)
        await model.change(tx, snapshot_id, {"status": ctx.body["os-reset_status"]["status"]})


@api.action("os-update_snapshot_status", at=SNAPSHOT_ACTION, checks=[REPORT], body=schemas.REPORT, status=202)
async def report(ctx: Context, snapshot_id: str) -> None:
    """Report the status and the progress of a snapshot that is being created or deleted."""
    body = ctx.body["os-update_snapshot_status"]
    values = {"status": body["status"]}
    if "progress" in body:
        values["progress"] = int(body["progress"].rstrip("%"))
    async with ctx.db.transaction() as tx:
        snapshot = await model.find(ctx, tx, snapshot_id, rule=REPORT, lock=True)
        if snapshot.status not in model.REPORTABLE:
            raise BadRequest(f"Snapshot status {snapshot.status} not allowed for update_snapshot_status")
        if body["status"] not in model.REPORTABLE[snapshot.status]:
            raise BadRequest(
                f"Provided snapshot status {body['status']} not allowed for snapshot with status {snapshot.status}."
            )
        await model.change(tx, snapshot_id, values)


def _new(ctx: Context, volume: Volume, body: dict[str, str]) -> Snapshot:
    return Snapshot(
        id=new_id(),
        project_id=ctx.token.project_id or volume.project_id,
        user_id=ctx.token.user_id,
        volume_id=volume.id,
        name=body.get("name", body.get("display_name")),
        description=body.get("description", body.get("display_description")),
        size=volume.size,
        status=model.CREATING,
        progress=0,
        bootable=volume.bootable,
        image_metadata=volume.image_metadata,
        created_at=ctx.now,
        updated_at=ctx.now,
    )


async def _delete(ctx: Context, tx: Transaction, snapshot: Snapshot) -> None:
    from kilonova.volume.operations.create_snapshot import SnapshotParams
    from kilonova.volume.operations.delete_snapshot import DeleteSnapshot

    await model.change(tx, snapshot.id, {"status": model.DELETING})
    await volumes.begin_operation(ctx, tx, DeleteSnapshot, snapshot.project_id, SnapshotParams(snapshot.id))
