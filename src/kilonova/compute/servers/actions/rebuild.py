"""Rebuild a server on its host from an image.

A volume-backed server keeps its boot volume. Its content is kept before 2.93, replaced by the image before 2.106, and
from 2.106 on replaced if the request sets `reimage_boot_volume`.
"""

from __future__ import annotations

from msgspec import structs

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.rebuild import WITH_VOLUMES, Rebuild, RebuildParams
from kilonova.compute.operations.reimage import Reimage, ReimageParams
from kilonova.compute.operations.steps import plugged, power
from kilonova.compute.servers import action_checks, create, image_checks, model, personality, trusted_certificates
from kilonova.compute.servers.scheduling import Destination, request_for
from kilonova.compute.servers.schemas import (
    ACCESS_V4,
    ACCESS_V6,
    DISK_CONFIG,
    HOSTNAME,
    IMAGE_REF,
    USER_DATA,
)
from kilonova.compute.servers.server import Server
from kilonova.compute.servers.shown_server import enrich
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict
from kilonova.http.parameter_types import (
    BOOLEAN,
    DESCRIPTION,
    METADATA,
    NAME,
    STRING,
    Schema,
    closed_object,
    is_true,
    normalize_address,
)
from kilonova.image.client import Image
from kilonova.store.records import encode_document
from kilonova.volume.client import REIMAGE_VERSION, Volume, VolumeServiceTooOld

RULE = "os_compute_api:servers:rebuild"
TRAIT = "COMPUTE_REBUILD_BFV"
REPLACED = api.behaviour("the content of a volume that a server boots from is replaced when it is rebuilt")
CONSENT = api.behaviour("that takes consent")

REBUILD: Schema = closed_object(
    {
        "imageRef": IMAGE_REF,
        "adminPass": STRING,
        "name": NAME,
        "description": DESCRIPTION,
        "hostname": HOSTNAME,
        "metadata": METADATA,
        "key_name": {**NAME, "type": ["string", "null"]},
        "user_data": USER_DATA,
        "accessIPv4": ACCESS_V4,
        "accessIPv6": ACCESS_V6,
        "OS-DCF:diskConfig": DISK_CONFIG,
        "preserve_ephemeral": BOOLEAN,
        "trusted_image_certificates": trusted_certificates.SCHEMA,
        "reimage_boot_volume": BOOLEAN,
    },
    ["imageRef"],
)
Columns = dict[str, str | None]
# Fields that are stored as given.
_PLAIN = {
    "name": "name",
    "description": "description",
    "hostname": "hostname",
    "user_data": "user_data",
    "OS-DCF:diskConfig": "disk_config",
}


@api.action(
    "rebuild",
    body=REBUILD,
    checks=[RULE, trusted_certificates.REBUILD],
    status=202,
    dry_run=True,
    shows=("server", "server rebuild", False),
)
async def rebuild(ctx: Context, server_id: str) -> Response:
    """Rebuild a server from an image, on its host."""
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="rebuild")
    _check_supported(ctx, server)
    params = await _plan_rebuild(ctx, server)
    if dry_run.is_requested(ctx):
        return await dry_run.plan_response(ctx, model.target(server), [])
    async with ctx.db.transaction() as tx:
        server = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="rebuild")
        skipped = plugged.steps_to_skip(ctx.services)
        if isinstance(params, ReimageParams):
            await action_checks.begin_operation(ctx, tx, server, Reimage, params, without=skipped)
        else:
            without = skipped if await devices.volumes_of(tx, server_id) else skipped | WITH_VOLUMES
            await action_checks.begin_operation(ctx, tx, server, Rebuild, params, without=without)
    (shown,) = await enrich(ctx, [server.with_columns(params.columns)], "server rebuild")
    shown = structs.replace(shown, admin_pass=ctx.body["rebuild"].get("adminPass") or create.new_password())
    return Response(
        {"server": ctx.render("server rebuild", shown)}, headers={"Location": ctx.url(f"/servers/{server_id}")}
    )


def _check_supported(ctx: Context, server: Server) -> None:
    requested = ctx.body["rebuild"]
    if is_true(requested.get("preserve_ephemeral", False)):
        raise BadRequest("preserve_ephemeral is not supported: a rebuild creates all local disks anew.")
    trusted_certificates.check(
        ctx,
        requested.get("trusted_image_certificates"),
        trusted_certificates.REBUILD,
        model.target(server),
        volume_backed=server.is_volume_backed,
    )
    if not server.is_volume_backed and is_true(requested.get("reimage_boot_volume", False)):
        raise BadRequest("reimage_boot_volume: the server does not boot from a volume.")


async def _plan_rebuild(ctx: Context, server: Server) -> RebuildParams | ReimageParams:
    """The parameters of the operation. Raises if the rebuild is not possible."""
    image_id = ctx.body["rebuild"]["imageRef"].rstrip("/").rsplit("/", 1)[-1]
    if server.is_volume_backed:
        return await _plan_volume_rebuild(ctx, server, image_id)
    image = await image_checks.find_fitting(ctx, image_id, server.flavor)
    image_checks.check_data(image)
    columns = await _image_columns(ctx, server, image) | await _columns(ctx)
    return RebuildParams(grace=power.shutdown_grace(server), columns=columns)


async def _plan_volume_rebuild(ctx: Context, server: Server, image_id: str) -> RebuildParams | ReimageParams:
    """The parameters for a boot volume, which keeps its content in a Rebuild."""
    device = await devices.root_of(ctx.db, server.id)
    volume = None
    if device is not None and device.volume_id is not None:
        volume = await ctx.services.volume.show(device.volume_id, await ctx.services.identity.auth())
    if volume is None:
        raise Conflict(f"The boot volume of instance {server.id} could not be found.")
    image = await image_checks.find_active(ctx, image_id)
    if not _replaces_content(ctx):
        if volume.image_metadata.get("image_id") != image_id:
            raise BadRequest(_other_image_error(ctx))
        return RebuildParams(grace=power.shutdown_grace(server), columns=await _columns(ctx))
    await _check_replaceable(ctx, server, volume, image)
    return ReimageParams(
        volume_id=volume.id,
        image_id=image_id,
        image_bytes=image.disk_bytes,
        image_hash=image.hash,
        grace=power.shutdown_grace(server),
        columns=await _image_columns(ctx, server, image) | await _columns(ctx),
    )


def _replaces_content(ctx: Context) -> bool:
    return (
        is_true(ctx.body["rebuild"].get("reimage_boot_volume", False))
        if ctx.has_behaviour(CONSENT)
        else ctx.has_behaviour(REPLACED)
    )


def _other_image_error(ctx: Context) -> str:
    """The error for an image other than the boot volume's."""
    if ctx.has_behaviour(CONSENT):
        return (
            "The server boots from a volume, which was not made of this image. To replace the volume's content by"
            " the image say reimage_boot_volume: true. The content of the volume will be destroyed."
        )
    return (
        "Unable to rebuild with a different image for a volume-backed server. From version 2.93 this replaces the"
        " content of the volume."
    )


async def _check_replaceable(ctx: Context, server: Server, volume: Volume, image: Image) -> None:
    if volume.multiattach:
        raise BadRequest(
            f"Volume {volume.id}, which the server boots from, is made for several servers at a time (multiattach)."
            " Its content cannot be replaced by a rebuild."
        )
    image_checks.check_data(image)
    image_checks.check_ram(image.min_ram, server.flavor)
    needed = max(image.min_disk * 2**30, image.disk_bytes)
    if needed > volume.size * 2**30:
        raise BadRequest(f"Volume {volume.id} is too small for the image: it has {volume.size} GiB.")
    if await ctx.db.fetch_value(action_checks.HAS_TRAIT, server.host, server.hypervisor_hostname, TRAIT) is None:
        raise Conflict(
            "The server's host cannot rebuild servers that boot from volumes: its resource provider lacks the trait"
            f" {TRAIT}."
        )
    try:
        await ctx.services.volume.check_version(REIMAGE_VERSION, await ctx.services.identity.auth())
    except VolumeServiceTooOld as error:
        raise Conflict(str(error)) from None


async def _image_columns(ctx: Context, server: Server, image: Image) -> Columns:
    """The columns of the new image. A volume-backed server has no image id."""
    properties = image_checks.properties(image)
    create.check_needs(server.flavor_id, server.flavor, properties, root_disk=not server.is_volume_backed)
    image_id = None if server.is_volume_backed else image.id
    await _check_host(ctx, server, structs.replace(server, image_id=image_id, image_properties=properties))
    image_hash = image.hash or None if image_id is not None else None
    return {"image_id": image_id, "image_hash": image_hash, "image_properties": encode_document(properties)}


async def _columns(ctx: Context) -> Columns:
    """The other changed columns."""
    requested = ctx.body["rebuild"]
    columns: Columns = {_PLAIN[key]: value for key, value in requested.items() if key in _PLAIN}
    if "trusted_image_certificates" in requested:
        columns["trusted_certificates"] = trusted_certificates.column(requested["trusted_image_certificates"])
    if "metadata" in requested:
        await create.check_metadata(ctx, requested["metadata"])
        columns["metadata"] = encode_document(requested["metadata"])
    if "key_name" in requested:
        # Key pairs belong to users, so this is the caller's key.
        key = await create.find_key(ctx, requested["key_name"])
        columns |= {"key_name": key.name if key else None, "public_key": key.public_key if key else None}
    for name, column in (("accessIPv4", "access_ip_v4"), ("accessIPv6", "access_ip_v6")):
        if name in requested:
            columns[column] = normalize_address(requested[name])
    files = requested.get("personality", [])
    await personality.check(ctx, files)
    # The new guest has only the files of this request, and creates its own password.
    return {**columns, "personality": personality.column(files), "sealed_password": None}


async def _check_host(ctx: Context, server: Server, rebuilt: Server) -> None:
    """Check that the server's host and allocation satisfy the new image's requirements."""
    if (rebuilt.image_id, rebuilt.image_properties) == (server.image_id, server.image_properties):
        return
    here = Destination(host=server.host, hypervisor_hostname=server.hypervisor_hostname)
    request = await request_for(ctx.db, rebuilt, destination=here)
    held = await request_for(ctx.db, server, destination=here)
    if (request.resources, request.groups) != (held.resources, held.groups):
        raise BadRequest("The image requires other resources than the server's allocation has.")
    if objections := await ctx.services.scheduler.rebuild_objections(request):
        raise BadRequest(f"The server's host cannot run this image: {', '.join(objections)}")
