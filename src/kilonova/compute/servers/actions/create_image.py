"""Create an image of a server."""

from __future__ import annotations

import logging

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.operations.create_image import CreateImage, CreateImageParams, CreateVolumeImage
from kilonova.compute.operations.steps import images
from kilonova.compute.operations.steps.images import NewImageParams
from kilonova.compute.servers import action_checks, create, model, states
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.client import Refused, Unreachable
from kilonova.http.errors import Conflict
from kilonova.http.parameter_types import METADATA, NAME, Schema, closed_object
from kilonova.identity.catalog_caller import without_version
from kilonova.identity.client import IdentityError
from kilonova.operations import Operation
from kilonova.operations.states import CANCELLED, FAILED, UNDOING

RULE = "os_compute_api:servers:create_image"
OF_VOLUMES = RULE + ":allow_volume_backed"
UNLIMITED = api.behaviour("the metadata of images is limited by the image service alone")
SAYS_ID = api.behaviour("the answer says the id of the new image")

CREATE_IMAGE: Schema = closed_object({"name": NAME, "metadata": METADATA}, ["name"])

_FAILING = frozenset({UNDOING, FAILED, CANCELLED})

log = logging.getLogger(__name__)


@api.action("createImage", body=CREATE_IMAGE, checks=[RULE, OF_VOLUMES], status=202, dry_run=True)
async def create_image(ctx: Context, server_id: str) -> Response:
    """Create an image of a server."""
    requested = ctx.body["createImage"]
    params = CreateImageParams(name=requested["name"], metadata=requested.get("metadata", {}))
    if not ctx.has_behaviour(UNLIMITED):
        await create.check_metadata(ctx, params.metadata)
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(
            ctx, tx, server_id, rule=RULE, transition="createImage", even_locked=True
        )
        volume_backed = server.is_volume_backed
        if volume_backed:
            ctx.authorize(OF_VOLUMES, model.target(server))
            if server.vm_state == states.PAUSED:
                raise Conflict(f"Cannot 'createImage' instance {server_id} while it is in vm_state {states.PAUSED}")
        if not dry_run.is_requested(ctx):
            operation: type[Operation[CreateImageParams]] = CreateVolumeImage if volume_backed else CreateImage
            operation_id = await action_checks.begin_operation(ctx, tx, server, operation, params)
    if dry_run.is_requested(ctx):
        return await dry_run.plan_response(ctx, model.target(server), [])
    image_id = images.snapshot_id(operation_id)
    await create_early(ctx, operation_id, server, params)
    return await image_response(ctx, image_id)


async def image_response(ctx: Context, image_id: str) -> Response:
    """The id of the new image; before 2.45 its URL at the image service."""
    if ctx.has_behaviour(SAYS_ID):
        return Response({"image_id": image_id})
    return Response(headers={"Location": f"{await _image_service_url(ctx)}/v2/images/{image_id}"})


async def _image_service_url(ctx: Context) -> str:
    config = ctx.services.config
    if config.is_built_in("image"):
        return f"{ctx.site_url()}/image"
    if config.image.url:
        return without_version(config.image.url)
    try:
        return without_version(await ctx.services.identity.endpoint("image", interface="public"))
    except (IdentityError, Unreachable):
        return ""  # the request has succeeded, and clients read only the id at the end of the URL


async def create_early(ctx: Context, operation_id: str, server: Server, params: NewImageParams) -> None:
    """Create the image now, so that the caller finds it. If that fails, the operation creates it.

    If the operation has already failed, delete the image again.
    """
    image_id = images.snapshot_id(operation_id)
    try:
        await images.create(ctx.services, image_id, server, params.name, params.metadata)
        if await ctx.db.fetch_value("SELECT state FROM operations WHERE id = $1", operation_id) in _FAILING:
            await ctx.services.image.delete(image_id, await ctx.services.identity.token())
    except (Refused, Unreachable, IdentityError) as error:
        log.warning("image %s cannot be shown yet: %s", image_id, error)
