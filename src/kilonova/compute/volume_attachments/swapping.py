"""Swapping a volume of a server for another one, which other services ask for: they move what users store."""

from __future__ import annotations

from typing import Any

from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.swap_volume import SwapVolume
from kilonova.compute.servers import acting
from kilonova.compute.volume_attachments import checks
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotFound
from kilonova.http.pieces import is_true
from kilonova.store import Row, Transaction

RULE = "os_compute_api:os-volumes-attachments:swap"
# What the volume service shows to services.
OWNER = "os-vol-tenant-attr:tenant_id"


async def swap(ctx: Context, server_id: str, volume_id: str, asked: dict[str, Any]) -> Answer:
    """Begin to give the server's guest another volume, with what is on the one it has."""
    async with ctx.db.transaction() as tx:
        row, _ = await _ready(ctx, tx, server_id, volume_id)
    # Whoever may do this may not see the volumes, which are of the server's project.
    auth = await ctx.services.identity.auth()
    old = await ctx.services.volume.show(volume_id, auth)
    new = await ctx.services.volume.show(asked["volumeId"], auth)
    if new is None or new.get(OWNER, row["project_id"]) != row["project_id"]:
        raise BadRequest(checks.missing(asked["volumeId"]))
    _check(ctx, old, new)
    async with ctx.db.transaction() as tx:
        row, device = await _ready(ctx, tx, server_id, volume_id)
        await checks.check_nobody_else(tx, server_id, new)
        if "delete_on_termination" in asked:
            await devices.set_termination(tx, device["uuid"], is_true(asked["delete_on_termination"]))
        wanted = {"id": new["id"], "size": new["size"], "multiattach": new["multiattach"]}
        params = {"device": device["uuid"], "old": volume_id, "new": wanted}
        await acting.start(ctx, tx, row, SwapVolume, params)
    return Answer()


async def _ready(ctx: Context, tx: Transaction, server_id: str, volume_id: str) -> tuple[Row, Row]:
    row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="swap_volume")
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
    checks.check_free(ctx, new)
    if new["size"] < old["size"]:
        raise checks.invalid("New volume must be the same size or larger.")
