"""Volume swap: other services replace a server's volume by another one, to migrate its data."""

from __future__ import annotations

from typing import Any

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.swap_volume import SwapVolume
from kilonova.compute.servers import action_checks
from kilonova.compute.volume_attachments import checks
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.parameter_types import is_true
from kilonova.store import Row, Transaction

RULE = "os_compute_api:os-volumes-attachments:swap"
# The field in which the volume service shows the project to services.
OWNER = "os-vol-tenant-attr:tenant_id"


async def swap(ctx: Context, server_id: str, volume_id: str, requested: dict[str, Any]) -> Response:
    """Begin to copy the volume to the new one and to replace it in the guest."""
    async with ctx.db.transaction() as tx:
        row, _ = await _lock_ready_server(ctx, tx, server_id, volume_id)
    # The service's own token: the caller may lack access to volumes of the server's project.
    auth = await ctx.services.identity.auth()
    old = await ctx.services.volume.show(volume_id, auth)
    new = await ctx.services.volume.show(requested["volumeId"], auth)
    if new is None or new.get(OWNER, row["project_id"]) != row["project_id"]:
        raise BadRequest(checks.not_found_message(requested["volumeId"]))
    _check(ctx, old, new)
    async with ctx.db.transaction() as tx:
        row, device = await _lock_ready_server(ctx, tx, server_id, volume_id)
        await checks.check_not_attached_elsewhere(tx, server_id, new)
        if "delete_on_termination" in requested:
            await devices.set_delete_on_termination(tx, device["uuid"], is_true(requested["delete_on_termination"]))
        volume = {"id": new["id"], "size": new["size"], "multiattach": new["multiattach"]}
        params = {"device": device["uuid"], "old": volume_id, "new": volume}
        await action_checks.begin_operation(ctx, tx, row, SwapVolume, params)
    return Response()


async def _lock_ready_server(ctx: Context, tx: Transaction, server_id: str, volume_id: str) -> tuple[Row, Row]:
    row = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="swap_volume")
    device = await devices.of_volume(tx, server_id, volume_id)
    if device is None:
        raise NotFound(f"volume_id not found: {volume_id}")
    return row, device


def _check(ctx: Context, old: checks.Item | None, new: checks.Item) -> None:
    if old is None or old["status"] != "in-use":
        raise checks.invalid("the old volume must be in use to be swapped.")
    if old["multiattach"] and len(old["attachments"]) > 1:
        raise BadRequest("Swapping multi-attach volumes with more than one read/write attachment is not supported.")
    if new["status"] != "available":
        raise checks.invalid("Volume must be detached in order to swap.")
    checks.check_available(ctx, new)
    if new["size"] < old["size"]:
        raise checks.invalid("New volume must be the same size or larger.")
