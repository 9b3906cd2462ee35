"""Assisted volume snapshots: routes by which the volume service requests snapshots of attached volumes."""

from __future__ import annotations

import orjson

from kilonova.compute.api import api
from kilonova.compute.operations.assist_snapshot import AssistSnapshot, AssistSnapshotParams
from kilonova.compute.servers import action_checks
from kilonova.compute.servers.server import Server
from kilonova.compute.volumes.schemas import ASSISTED
from kilonova.http import Context, Response, repeatable
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.parameter_types import STRING
from kilonova.store import Transaction

RULE = "os_compute_api:os-assisted-volume-snapshots:"


@api.route("POST", "/os-assisted-volume-snapshots", policy=RULE + "create", body=ASSISTED, query={})
async def create(ctx: Context) -> Response:
    """Create an assisted snapshot of an attached volume."""
    requested = ctx.body["snapshot"]
    info = requested["create_info"]
    async with ctx.db.transaction() as tx:
        server = await _find_server(tx, requested["volume_id"])
        if server is None:
            raise BadRequest(f"No volume Block Device Mapping with id {requested['volume_id']}.")
        params = AssistSnapshotParams(snapshot_id=info["snapshot_id"], status="error")
        await action_checks.begin_operation(ctx, tx, server, AssistSnapshot, params)
    return Response({"snapshot": {"id": info.get("id"), "volumeId": requested["volume_id"]}})


@api.route(
    "DELETE",
    "/os-assisted-volume-snapshots/{snapshot_id}",
    policy=RULE + "delete",
    query=repeatable({"delete_info": STRING}),
    status=204,
)
async def delete(ctx: Context, snapshot_id: str) -> Response:
    """Delete an assisted snapshot of an attached volume."""
    volume_id = _volume_id(ctx.query_one("delete_info"))
    async with ctx.db.transaction() as tx:
        server = await _find_server(tx, volume_id)
        if server is None:
            raise NotFound(f"No volume Block Device Mapping with id {volume_id}.")
        params = AssistSnapshotParams(snapshot_id=snapshot_id, status="error_deleting")
        await action_checks.begin_operation(ctx, tx, server, AssistSnapshot, params)
    return Response()


def _volume_id(text: str | None) -> str:
    try:
        return str(orjson.loads(text or "")["volume_id"])
    except (ValueError, KeyError, TypeError):
        raise BadRequest("delete_info must be a JSON object with the volume_id.") from None


async def _find_server(tx: Transaction, volume_id: str) -> Server | None:
    """A server on a host that has the volume attached."""
    row = await tx.fetch_one(
        "SELECT s.* FROM servers s JOIN block_devices d ON d.server_id = s.id"
        " WHERE d.volume_id = $1 AND NOT s.deleted AND s.host IS NOT NULL ORDER BY d.id LIMIT 1",
        volume_id,
    )
    return Server.decode_optional(row)
