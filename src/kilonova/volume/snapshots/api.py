"""Routes of snapshots."""

from __future__ import annotations

from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import next_link
from kilonova.http.pieces import ANYTHING, is_true
from kilonova.ids import new_id
from kilonova.operations import Operation, begin
from kilonova.store import Row, Transaction
from kilonova.volume import filters
from kilonova.volume.api import SNAPSHOT_ACTION, api
from kilonova.volume.quotas import model as quotas
from kilonova.volume.snapshots import listing, model, schemas, views
from kilonova.volume.volumes import model as volumes
from kilonova.volume.volumes import states

__all__ = ["views"]

RULE = "volume:"
CREATE, INDEX, UPDATE = RULE + "create_snapshot", RULE + "get_all_snapshots", RULE + "update_snapshot"
DELETE = RULE + "delete_snapshot"
RESET = "volume_extension:snapshot_admin_actions:reset_status"
FORCE_DELETE = "volume_extension:snapshot_admin_actions:force_delete"
REPORT = "volume_extension:snapshot_actions:update_snapshot_status"
SNAPSHOT = "/snapshots/{snapshot_id}"
UNFORCED = "snapshots of volumes that servers have need no force"


@api.route("GET", "/snapshots", policy=INDEX, query=schemas.LIST, shows=("snapshots", "snapshot brief", True))
async def index(ctx: Context) -> Answer:
    """List snapshots."""
    return await _page(ctx, "/snapshots", "snapshot brief")


@api.route("GET", "/snapshots/detail", policy=INDEX, query=schemas.LIST, shows=("snapshots", "snapshot", True))
async def detail(ctx: Context) -> Answer:
    """List snapshots with their details."""
    return await _page(ctx, "/snapshots/detail", "snapshot")


@api.route(
    "POST",
    "/snapshots",
    checks=[CREATE],
    body=schemas.CREATE,
    query={},
    status=202,
    shows=("snapshot", "snapshot brief", False),
)
async def create(ctx: Context) -> Answer:
    """Create a snapshot of a volume."""
    from kilonova.volume.operations.make_snapshot import MakeSnapshot

    asked = ctx.body["snapshot"]
    forced = ctx.behaves(UNFORCED) or is_true(asked.get("force"))
    async with ctx.db.transaction() as tx:
        volume = await volumes.find(ctx, tx, str(asked["volume_id"]), rule=CREATE, lock=True)
        states.check(volume, "snapshot in-use" if forced else "snapshot")
        row = _new(ctx, volume, asked)
        await quotas.check(
            tx,
            row["project_id"],
            volume["type_name"],
            config=ctx.services.config,
            snapshots=1,
            gigabytes=row["size"],
        )
        await model.insert(tx, row)
        await model.set_metadata(tx, row["id"], asked.get("metadata") or {})
        await _begin(ctx, tx, MakeSnapshot, row)
    return Answer({"snapshot": ctx.render("snapshot brief", {**row, "metadata": asked.get("metadata") or {}})})


@api.route("GET", SNAPSHOT, checks=[model.SHOW], query={}, shows=("snapshot", "snapshot", False))
async def show(ctx: Context, snapshot_id: str) -> Answer:
    """Show a snapshot."""
    row = await model.find(ctx, ctx.db, snapshot_id, rule=model.SHOW)
    await model.dress(ctx.db, [row])
    return Answer({"snapshot": ctx.render("snapshot", row)})


@api.route("PUT", SNAPSHOT, checks=[UPDATE], body=schemas.UPDATE, query={}, shows=("snapshot", "snapshot brief", False))
async def update(ctx: Context, snapshot_id: str) -> Answer:
    """Rename a snapshot, or describe it anew."""
    asked = ctx.body["snapshot"]
    # The newer name of a field has the last word.
    values = {key.removeprefix("display_"): asked[key] for key in sorted(asked)}
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, snapshot_id, rule=UPDATE, lock=True)
        await model.change(tx, snapshot_id, values)
        row = await model.find(ctx, tx, snapshot_id, rule=UPDATE)
        await model.dress(tx, [row])
    return Answer({"snapshot": ctx.render("snapshot brief", row)})


@api.route("DELETE", SNAPSHOT, checks=[DELETE], query={}, status=202)
async def delete(ctx: Context, snapshot_id: str) -> None:
    """Delete a snapshot."""
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, snapshot_id, rule=DELETE, lock=True)
        await model.check_deletable(tx, row)
        await _delete(ctx, tx, row)


@api.action("os-force_delete", at=SNAPSHOT_ACTION, checks=[FORCE_DELETE], body=ANYTHING, status=202)
async def force_delete(ctx: Context, snapshot_id: str) -> None:
    """Delete a snapshot whatever its status."""
    async with ctx.db.transaction() as tx:
        await _delete(ctx, tx, await model.find(ctx, tx, snapshot_id, rule=FORCE_DELETE, lock=True))


@api.action("os-reset_status", at=SNAPSHOT_ACTION, checks=[RESET], body=schemas.RESET, status=202)
async def reset_status(ctx: Context, snapshot_id: str) -> None:
    """Set the status of a snapshot, whatever it is."""
    async with ctx.db.transaction() as tx:
        await model.find(ctx, tx, snapshot_id, rule=RESET, lock=True)
        await model.change(tx, snapshot_id, {"status": ctx.body["os-reset_status"]["status"]})


@api.action("os-update_snapshot_status", at=SNAPSHOT_ACTION, checks=[REPORT], body=schemas.REPORT, status=202)
async def report(ctx: Context, snapshot_id: str) -> None:
    """Say what has become of a snapshot that is being made or deleted, and how far it is."""
    asked = ctx.body["os-update_snapshot_status"]
    values = {"status": asked["status"]}
    if "progress" in asked:
        values["progress"] = int(asked["progress"].rstrip("%"))
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, snapshot_id, rule=REPORT, lock=True)
        if row["status"] not in model.REPORTS:
            raise BadRequest(f"Snapshot status {row['status']} not allowed for update_snapshot_status")
        if asked["status"] not in model.REPORTS[row["status"]]:
            raise BadRequest(
                f"Provided snapshot status {asked['status']} not allowed for snapshot with status {row['status']}."
            )
        await model.change(tx, snapshot_id, values)


async def _page(ctx: Context, path: str, view: str) -> Answer:
    rows, full = await listing.snapshots(ctx)
    await model.dress(ctx.db, rows)
    shown: dict[str, Any] = {"snapshots": [ctx.render(view, row) for row in rows]}
    if full:
        shown["snapshots_links"] = next_link(ctx, path, rows[-1]["id"], full)
    if filters.counted(ctx):
        shown["count"] = await listing.count(ctx)
    return Answer(shown)


def _new(ctx: Context, volume: Row, asked: dict[str, Any]) -> Row:
    return {
        "id": new_id(),
        "project_id": ctx.token.project_id or volume["project_id"],
        "user_id": ctx.token.user_id,
        "volume_id": volume["id"],
        "name": asked.get("name", asked.get("display_name")),
        "description": asked.get("description", asked.get("display_description")),
        "size": volume["size"],
        "status": model.CREATING,
        "progress": 0,
        "bootable": volume["bootable"],
        "image_metadata": volume["image_metadata"],
        "created_at": ctx.now,
        "updated_at": ctx.now,
    }


async def _delete(ctx: Context, tx: Transaction, row: Row) -> None:
    from kilonova.volume.operations.delete_snapshot import DeleteSnapshot

    await model.change(tx, row["id"], {"status": model.DELETING})
    await _begin(ctx, tx, DeleteSnapshot, row)


async def _begin(ctx: Context, tx: Transaction, operation: type[Operation], row: Row) -> None:
    await begin(
        tx,
        operation,
        params={"snapshot_id": row["id"]},
        project_id=row["project_id"],
        user_id=ctx.token.user_id,
        request_id=ctx.request_id,
    )
