"""Routes by which the volume service asks for help with snapshots of volumes that guests have."""

from __future__ import annotations

import orjson

from kilonova.compute.api import api
from kilonova.compute.operations.assist_snapshot import AssistSnapshot
from kilonova.compute.servers import acting
from kilonova.compute.volumes.schemas import ASSISTED
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pieces import STRING
from kilonova.store import Row, Transaction

RULE = "os_compute_api:os-assisted-volume-snapshots:"


@api.route("POST", "/os-assisted-volume-snapshots", policy=RULE + "create", body=ASSISTED, query={})
async def create(ctx: Context) -> Answer:
    """Help with the snapshot of a volume that a guest has."""
    asked = ctx.body["snapshot"]
    info = asked["create_info"]
    async with ctx.db.transaction() as tx:
        row = await _server(tx, asked["volume_id"])
        if row is None:
            raise BadRequest(f"No volume Block Device Mapping with id {asked['volume_id']}.")
        await acting.start(ctx, tx, row, AssistSnapshot, {"snapshot_id": info["snapshot_id"], "status": "error"})
    return Answer({"snapshot": {"id": info.get("id"), "volumeId": asked["volume_id"]}})


@api.route(
    "DELETE",
    "/os-assisted-volume-snapshots/{snapshot_id}",
    policy=RULE + "delete",
    query={"delete_info": STRING},
    status=204,
)
async def delete(ctx: Context, snapshot_id: str) -> Answer:
    """Help with the deletion of a snapshot of a volume that a guest has."""
    volume_id = _volume_id(ctx.query_one("delete_info"))
    async with ctx.db.transaction() as tx:
        row = await _server(tx, volume_id)
        if row is None:
            raise NotFound(f"No volume Block Device Mapping with id {volume_id}.")
        params = {"snapshot_id": snapshot_id, "status": "error_deleting"}
        await acting.start(ctx, tx, row, AssistSnapshot, params)
    return Answer()


def _volume_id(text: str | None) -> str:
    try:
        return str(orjson.loads(text or "")["volume_id"])
    except (ValueError, KeyError, TypeError):
        raise BadRequest("delete_info must be a JSON object with the volume_id.") from None


async def _server(tx: Transaction, volume_id: str) -> Row | None:
    """One that has the volume, on a host."""
    return await tx.fetch_one(
        "SELECT s.* FROM servers s JOIN block_devices d ON d.server_id = s.id"
        " WHERE d.volume_id = $1 AND NOT s.deleted AND s.host IS NOT NULL ORDER BY d.id LIMIT 1",
        volume_id,
    )
