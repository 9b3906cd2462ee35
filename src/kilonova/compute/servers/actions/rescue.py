"""Rescue and unrescue a server."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.operations.rescue import Rescue, RescueParams, describe
from kilonova.compute.operations.steps import power
from kilonova.compute.operations.unrescue import Unrescue
from kilonova.compute.servers import action_checks, image_checks
from kilonova.compute.servers.create import new_password
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import ANYTHING, STRING, UUID, Schema, closed_object
from kilonova.image.client import Image

RULE = "os_compute_api:os-rescue"
UNRESCUE = "os_compute_api:os-unrescue"
OF_VOLUMES = api.behaviour("servers that boot from volumes can be rescued")
TRAIT = "COMPUTE_RESCUE_BFV"
_STABLE = ("hw_rescue_bus", "hw_rescue_device")

RESCUE: Schema = closed_object({"adminPass": STRING, "rescue_image_ref": UUID}, type=["object", "null"])


@api.action("rescue", body=RESCUE, checks=[RULE])
async def rescue(ctx: Context, server_id: str) -> Response:
    """Boot a server from a rescue image, or from its own image, with its root disk attached."""
    requested = ctx.body["rescue"] or {}
    password = requested.get("adminPass") or new_password()
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="rescue")
    image = await _image(ctx, server, requested.get("rescue_image_ref"))
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="rescue")
        params = RescueParams(
            password=password, image=describe(image) if image else None, grace=power.shutdown_grace(server)
        )
        await action_checks.begin_operation(ctx, tx, server, Rescue, params)
    return Response({"adminPass": password})


@api.action("unrescue", body=ANYTHING, checks=[UNRESCUE], status=202)
async def unrescue(ctx: Context, server_id: str) -> Response:
    """Boot a rescued server from its own disk again."""
    return await action_checks.begin_action(ctx, server_id, Unrescue, rule=UNRESCUE, transition="unrescue")


async def _image(ctx: Context, server: Server, image_id: str | None) -> Image | None:
    """The requested rescue image, if the server can boot from it."""
    image = await image_checks.find_active(ctx, image_id) if image_id is not None else None
    if image is not None:
        image_checks.check_data(image)
    if server.is_volume_backed:
        await _check_volume(ctx, server, image)
    return image


async def _check_volume(ctx: Context, server: Server, image: Image | None) -> None:
    """A volume-backed server needs an image for stable device rescue."""
    why = ""
    if not ctx.has_behaviour(OF_VOLUMES):
        why = "Cannot rescue a volume-backed instance"
    elif await ctx.db.fetch_value(action_checks.HAS_TRAIT, server.host, server.hypervisor_hostname, TRAIT) is None:
        why = "Host unable to rescue a volume-backed instance"
    elif image is None or not all(image.properties.get(name) for name in _STABLE):
        why = f"Cannot rescue a volume-backed instance with an image that lacks {' or '.join(_STABLE)}"
    if why:
        raise BadRequest(f"Instance {server.id} cannot be rescued: {why}")
