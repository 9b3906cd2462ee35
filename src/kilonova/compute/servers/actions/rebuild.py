"""Rebuild a server on its host from an image.

A volume-backed server keeps its boot volume. Its content is kept before 2.93, replaced by the image before 2.106, and
from 2.106 on replaced if the request sets `reimage_boot_volume`.
"""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations.rebuild import WITH_VOLUMES, Rebuild
from kilonova.compute.operations.reimage import Reimage, image_id_of
from kilonova.compute.operations.steps import power
from kilonova.compute.servers import action_checks, create, image_checks, model, trusted_certificates
from kilonova.compute.servers.scheduling import Destination, request_for
from kilonova.compute.servers.schemas import (
    ACCESS_V4,
    ACCESS_V6,
    DISK_CONFIG,
    HOSTNAME,
    IMAGE_REF,
    USER_DATA,
)
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
from kilonova.operations import Operation
from kilonova.store import Row
from kilonova.volume.client import REIMAGE_VERSION, VolumeServiceTooOld

RULE = "os_compute_api:servers:rebuild"
TRAIT = "COMPUTE_REBUILD_BFV"
REPLACED = "the content of a volume that a server boots from is replaced when it is rebuilt"
CONSENT = "that takes consent"

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
    requested = ctx.body["rebuild"]
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="rebuild")
    _check_supported(ctx, row, requested)
    operation, params = await _plan_rebuild(ctx, row, requested)
    if dry_run.is_requested(ctx):
        return await dry_run.plan_response(ctx, model.target(row), [])
    async with ctx.db.transaction() as tx:
        row = await action_checks.find_ready(ctx, tx, server_id, rule=RULE, transition="rebuild")
        bare = operation is Rebuild and not await devices.volumes_of(tx, server_id)
        await action_checks.begin_operation(
            ctx, tx, row, operation, params, without=WITH_VOLUMES if bare else frozenset()
        )
    row |= {**params["columns"], "admin_pass": requested.get("adminPass") or create.new_password()}
    await model.enrich(ctx, [row], "server rebuild")
    return Response(
        {"server": ctx.render("server rebuild", row)}, headers={"Location": ctx.url(f"/servers/{server_id}")}
    )


def _check_supported(ctx: Context, row: Row, requested: dict[str, Any]) -> None:
    if is_true(requested.get("preserve_ephemeral", False)):
        raise BadRequest("preserve_ephemeral is not supported: a rebuild creates all local disks anew.")
    volume_backed, trusted = devices.is_volume_backed(row), requested.get("trusted_image_certificates")
    trusted_certificates.check(
        ctx, trusted, trusted_certificates.REBUILD, model.target(row), volume_backed=volume_backed
    )
    if not volume_backed and is_true(requested.get("reimage_boot_volume", False)):
        raise BadRequest("reimage_boot_volume: the server does not boot from a volume.")


async def _plan_rebuild(ctx: Context, row: Row, requested: dict[str, Any]) -> tuple[type[Operation], dict[str, Any]]:
    """The operation and its parameters. Raises if the rebuild is not possible."""
    image_id = requested["imageRef"].rstrip("/").rsplit("/", 1)[-1]
    if devices.is_volume_backed(row):
        operation, params, image = await _plan_volume_rebuild(ctx, row, requested, image_id)
    else:
        operation, params, image = Rebuild, {}, await image_checks.find_fitting(ctx, image_id, _flavor(row))
        image_checks.check_data(image)
    columns = {} if image is None else await _image_columns(ctx, row, image)
    # The new guest creates its own password.
    changes = {**columns, **await _columns(ctx, requested), "sealed_password": None}
    return operation, {**params, **power.shutdown_params(row), "columns": changes}


async def _plan_volume_rebuild(
    ctx: Context, row: Row, requested: dict[str, Any], image_id: str
) -> tuple[type[Operation], dict[str, Any], image_checks.Image | None]:
    """The operation, its parameters, and the new image; None if the volume keeps its content."""
    device = await devices.root_of(ctx.db, row["id"])
    volume = device and await ctx.services.volume.show(device["volume_id"], await ctx.services.identity.auth())
    if not volume:
        raise Conflict(f"The boot volume of instance {row['id']} could not be found.")
    image = await image_checks.find_active(ctx, image_id)
    if not _replaces_content(ctx, requested):
        if image_id_of(volume) != image_id:
            raise BadRequest(_other_image_error(ctx))
        return Rebuild, {}, None
    await _check_replaceable(ctx, row, volume, image)
    size = max(image["size"] or 0, image.get("virtual_size") or 0)
    return Reimage, {"volume_id": volume["id"], "image_id": image_id, "image_bytes": size}, image


def _replaces_content(ctx: Context, requested: dict[str, Any]) -> bool:
    return (
        is_true(requested.get("reimage_boot_volume", False))
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


async def _check_replaceable(ctx: Context, row: Row, volume: dict[str, Any], image: image_checks.Image) -> None:
    if volume.get("multiattach"):
        raise BadRequest(
            f"Volume {volume['id']}, which the server boots from, is made for several servers at a time (multiattach)."
            " Its content cannot be replaced by a rebuild."
        )
    image_checks.check_data(image)
    image_checks.check_ram(image, _flavor(row))
    needed = max(image["min_disk"] * 2**30, image["size"] or 0, image.get("virtual_size") or 0)
    if needed > volume["size"] * 2**30:
        raise BadRequest(f"Volume {volume['id']} is too small for the image: it has {volume['size']} GiB.")
    if await ctx.db.fetch_value(action_checks.HAS_TRAIT, row["host"], row["hypervisor_hostname"], TRAIT) is None:
        raise Conflict(
            "The server's host cannot rebuild servers that boot from volumes: its resource provider lacks the trait"
            f" {TRAIT}."
        )
    try:
        await ctx.services.volume.check_version(REIMAGE_VERSION)
    except VolumeServiceTooOld as error:
        raise Conflict(str(error)) from None


def _flavor(row: Row) -> dict[str, Any]:
    return {**orjson.loads(row["flavor"]), "flavor_id": row["flavor_id"]}


async def _image_columns(ctx: Context, row: Row, image: image_checks.Image) -> dict[str, Any]:
    """The columns of the new image. A volume-backed server has no image id."""
    volume_backed = devices.is_volume_backed(row)
    create.check_needs(_flavor(row), image, root_disk=not volume_backed)
    columns = {
        "image_id": None if volume_backed else image["id"],
        "image_properties": orjson.dumps(image_checks.properties(image)).decode(),
    }
    await _check_host(ctx, row, columns)
    return columns


async def _columns(ctx: Context, requested: dict[str, Any]) -> dict[str, Any]:
    """The other changed columns."""
    columns = {_PLAIN[key]: value for key, value in requested.items() if key in _PLAIN}
    if "trusted_image_certificates" in requested:
        columns["trusted_certificates"] = trusted_certificates.column(requested["trusted_image_certificates"])
    if "metadata" in requested:
        await create.check_metadata(ctx, requested["metadata"])
        columns["metadata"] = orjson.dumps(requested["metadata"]).decode()
    if "key_name" in requested:
        # Key pairs belong to users, so this is the caller's key.
        key = await create.find_key(ctx, requested["key_name"])
        columns |= {"key_name": key and key["name"], "public_key": key and key["public_key"]}
    for name, column in (("accessIPv4", "access_ip_v4"), ("accessIPv6", "access_ip_v6")):
        if name in requested:
            columns[column] = normalize_address(requested[name])
    return columns


async def _check_host(ctx: Context, row: Row, columns: dict[str, Any]) -> None:
    """Check that the server's host and allocation satisfy the new image's requirements."""
    if all(row[name] == columns[name] for name in ("image_id", "image_properties")):
        return
    here = Destination(host=row["host"], hypervisor_hostname=row["hypervisor_hostname"])
    request = await request_for(ctx.db, {**row, **columns}, destination=here)
    held = await request_for(ctx.db, row, destination=here)
    if (request.resources, request.groups) != (held.resources, held.groups):
        raise BadRequest("The image requires other resources than the server's allocation has.")
    if objections := await ctx.services.scheduler.rebuild_objections(request):
        raise BadRequest(f"The server's host cannot run this image: {', '.join(objections)}")
