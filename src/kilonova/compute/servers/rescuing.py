"""Rescuing: a server runs from another image, so that its own disk can be repaired."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.block_devices.model import is_volume_backed
from kilonova.compute.operations import stopping
from kilonova.compute.operations.rescue import PASSWORD, Rescue, described
from kilonova.compute.operations.unrescue import Unrescue
from kilonova.compute.servers import acting, images
from kilonova.compute.servers.create import new_password
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import ANYTHING, STRING, UUID, Schema, closed
from kilonova.store import Row

RULE = "os_compute_api:os-rescue"
UNRESCUE = "os_compute_api:os-unrescue"
OF_VOLUMES = "servers that boot from volumes can be rescued"
TRAIT = "COMPUTE_RESCUE_BFV"
_STABLE = ("hw_rescue_bus", "hw_rescue_device")

RESCUE: Schema = closed({"adminPass": STRING, "rescue_image_ref": UUID}, type=["object", "null"])


@api.action("rescue", body=RESCUE, checks=[RULE])
async def rescue(ctx: Context, server_id: str) -> Answer:
    """Have a server run from a rescue image, or anew from its own, with its disk beside."""
    asked = ctx.body["rescue"] or {}
    password = asked.get("adminPass") or new_password()
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="rescue")
    image = await _image(ctx, row, asked.get("rescue_image_ref"))
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="rescue")
        params = {PASSWORD: password, "image": described(image) if image else None, **stopping.params_of(row)}
        await acting.start(ctx, tx, row, Rescue, params)
    return Answer({"adminPass": password})


@api.action("unrescue", body=ANYTHING, checks=[UNRESCUE], status=202)
async def unrescue(ctx: Context, server_id: str) -> Answer:
    """Have a rescued server run from its own disk again."""
    return await acting.act(ctx, server_id, Unrescue, rule=UNRESCUE, transition="unrescue")


async def _image(ctx: Context, row: Row, image_id: str | None) -> dict[str, Any] | None:
    """The one that was asked for, if the server can run from it."""
    image = await images.active(ctx, image_id) if image_id is not None else None
    if image is not None:
        images.check_data(image)
    if is_volume_backed(row):
        await _check_volume(ctx, row, image)
    return image


async def _check_volume(ctx: Context, row: Row, image: dict[str, Any] | None) -> None:
    """One that boots from a volume needs an image that takes its root disk's place without moving it."""
    why = ""
    if not ctx.behaves(OF_VOLUMES):
        why = "Cannot rescue a volume-backed instance"
    elif await ctx.db.fetch_value(acting.HAS_TRAIT, row["host"], row["hypervisor_hostname"], TRAIT) is None:
        why = "Host unable to rescue a volume-backed instance"
    elif image is None or not all(image.get(name) for name in _STABLE):
        why = f"Cannot rescue a volume-backed instance with an image that lacks {' or '.join(_STABLE)}"
    if why:
        raise BadRequest(f"Instance {row['id']} cannot be rescued: {why}")
