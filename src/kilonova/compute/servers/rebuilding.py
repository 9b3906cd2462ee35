"""Rebuilding: a server that stays where it is gets a new disk from an image, and what may be changed along with it.

One that boots from a volume keeps the volume. Whether its content is kept too, or replaced by the image, depends on
the version: before 2.93 it is always kept, before 2.106 always replaced, and since then replaced where the caller
says so.
"""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.block_devices import model as devices
from kilonova.compute.operations import stopping
from kilonova.compute.operations.rebuild import WITH_VOLUMES, Rebuild
from kilonova.compute.operations.reimage import Reimage, image_id_of
from kilonova.compute.servers import acting, certificates, create, images, model
from kilonova.compute.servers.placing import Destination, request_for
from kilonova.compute.servers.schemas import (
    ACCESS_V4,
    ACCESS_V6,
    DISK_CONFIG,
    HOSTNAME,
    IMAGE_REF,
    USER_DATA,
)
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Conflict
from kilonova.http.pieces import (
    BOOLEAN,
    DESCRIPTION,
    METADATA,
    NAME,
    STRING,
    Schema,
    address,
    closed,
    is_true,
)
from kilonova.operations import Operation
from kilonova.store import Row
from kilonova.volume.client import REIMAGE, TooOld

RULE = "os_compute_api:servers:rebuild"
TRAIT = "COMPUTE_REBUILD_BFV"
REPLACED = "the content of a volume that a server boots from is replaced when it is rebuilt"
CONSENT = "that takes consent"

REBUILD: Schema = closed(
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
        "trusted_image_certificates": certificates.SCHEMA,
        "reimage_boot_volume": BOOLEAN,
    },
    ["imageRef"],
)
# What is written as it is said.
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
    checks=[RULE, certificates.REBUILD],
    status=202,
    dry_run=True,
    shows=("server", "server rebuild", False),
)
async def rebuild(ctx: Context, server_id: str) -> Answer:
    """Build a server again from an image, on the host it has."""
    asked = ctx.body["rebuild"]
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="rebuild")
    _check_offered(ctx, row, asked)
    operation, params = await _work(ctx, row, asked)
    if dry_run.asked(ctx):
        return await dry_run.answer(ctx, model.target(row), [])
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="rebuild")
        bare = operation is Rebuild and not await devices.volumes_of(tx, server_id)
        await acting.start(ctx, tx, row, operation, params, without=WITH_VOLUMES if bare else frozenset())
    row |= {**params["columns"], "admin_pass": asked.get("adminPass") or create.new_password()}
    await model.dress(ctx, [row], "server rebuild")
    return Answer({"server": ctx.render("server rebuild", row)}, headers={"Location": ctx.url(f"/servers/{server_id}")})


def _check_offered(ctx: Context, row: Row, asked: dict[str, Any]) -> None:
    if is_true(asked.get("preserve_ephemeral", False)):
        raise BadRequest("preserve_ephemeral: hosts here make every disk of a rebuilt server anew.")
    volume_backed, trusted = devices.is_volume_backed(row), asked.get("trusted_image_certificates")
    certificates.check(ctx, trusted, certificates.REBUILD, model.target(row), volume_backed=volume_backed)
    if not volume_backed and is_true(asked.get("reimage_boot_volume", False)):
        raise BadRequest("reimage_boot_volume: the server does not boot from a volume.")


async def _work(ctx: Context, row: Row, asked: dict[str, Any]) -> tuple[type[Operation], dict[str, Any]]:
    """The operation, and its params. Refuses what cannot be."""
    image_id = asked["imageRef"].rstrip("/").rsplit("/", 1)[-1]
    if devices.is_volume_backed(row):
        operation, params, image = await _volume_work(ctx, row, asked, image_id)
    else:
        operation, params, image = Rebuild, {}, await images.fitting(ctx, image_id, _flavor(row))
        images.check_data(image)
    columns = {} if image is None else await _image_columns(ctx, row, image)
    # The new guest makes a password of its own.
    changes = {**columns, **await _columns(ctx, asked), "sealed_password": None}
    return operation, {**params, **stopping.params_of(row), "columns": changes}


async def _volume_work(
    ctx: Context, row: Row, asked: dict[str, Any], image_id: str
) -> tuple[type[Operation], dict[str, Any], images.Image | None]:
    """The operation, its params, and the image that is new to the server: none where the volume keeps its content."""
    device = await devices.root_of(ctx.db, row["id"])
    volume = device and await ctx.services.volume.show(device["volume_id"], await ctx.services.identity.auth())
    if not volume:
        raise Conflict(f"The volume that instance {row['id']} boots from could not be found.")
    image = await images.active(ctx, image_id)
    if not _is_replaced(ctx, asked):
        if image_id_of(volume) != image_id:
            raise BadRequest(_other_image(ctx))
        return Rebuild, {}, None
    await _check_replaceable(ctx, row, volume, image)
    size = max(image["size"] or 0, image.get("virtual_size") or 0)
    return Reimage, {"volume_id": volume["id"], "image_id": image_id, "image_bytes": size}, image


def _is_replaced(ctx: Context, asked: dict[str, Any]) -> bool:
    return is_true(asked.get("reimage_boot_volume", False)) if ctx.behaves(CONSENT) else ctx.behaves(REPLACED)


def _other_image(ctx: Context) -> str:
    """Why another image than the one that the volume was made of is refused."""
    if ctx.behaves(CONSENT):
        return (
            "The server boots from a volume, which was not made of this image. To replace the volume's content by"
            " the image say reimage_boot_volume: true. The content of the volume will be destroyed."
        )
    return (
        "Unable to rebuild with a different image for a volume-backed server. From version 2.93 this replaces the"
        " content of the volume."
    )


async def _check_replaceable(ctx: Context, row: Row, volume: dict[str, Any], image: images.Image) -> None:
    if volume.get("multiattach"):
        raise BadRequest(
            f"Volume {volume['id']}, which the server boots from, is made for several servers at a time (multiattach)."
            " Its content cannot be replaced by a rebuild."
        )
    images.check_data(image)
    images.check_ram(image, _flavor(row))
    needed = max(image["min_disk"] * 2**30, image["size"] or 0, image.get("virtual_size") or 0)
    if needed > volume["size"] * 2**30:
        raise BadRequest(f"Volume {volume['id']} is too small for the image: it has {volume['size']} GiB.")
    if await ctx.db.fetch_value(acting.HAS_TRAIT, row["host"], row["hypervisor_hostname"], TRAIT) is None:
        raise Conflict(
            "The server's host cannot rebuild servers that boot from volumes: its resource provider lacks the trait"
            f" {TRAIT}."
        )
    try:
        await ctx.services.volume.demand(REIMAGE)
    except TooOld as error:
        raise Conflict(str(error)) from None


def _flavor(row: Row) -> dict[str, Any]:
    return {**orjson.loads(row["flavor"]), "flavor_id": row["flavor_id"]}


async def _image_columns(ctx: Context, row: Row, image: images.Image) -> dict[str, Any]:
    """What the row shall say of the image. One that is in a volume has no id here."""
    volume_backed = devices.is_volume_backed(row)
    create.check_needs(_flavor(row), image, root_disk=not volume_backed)
    columns = {
        "image_id": None if volume_backed else image["id"],
        "image_properties": orjson.dumps(images.properties(image)).decode(),
    }
    await _check_host(ctx, row, columns)
    return columns


async def _columns(ctx: Context, asked: dict[str, Any]) -> dict[str, Any]:
    """What else the row shall say afterwards."""
    columns = {_PLAIN[key]: value for key, value in asked.items() if key in _PLAIN}
    if "trusted_image_certificates" in asked:
        columns["trusted_certificates"] = certificates.column(asked["trusted_image_certificates"])
    if "metadata" in asked:
        await create.check_metadata(ctx, asked["metadata"])
        columns["metadata"] = orjson.dumps(asked["metadata"]).decode()
    if "key_name" in asked:
        # Keys belong to users, servers to projects: it is the key of whoever asks.
        key = await create.key_named(ctx, asked["key_name"])
        columns |= {"key_name": key and key["name"], "public_key": key and key["public_key"]}
    for name, column in (("accessIPv4", "access_ip_v4"), ("accessIPv6", "access_ip_v6")):
        if name in asked:
            columns[column] = address(asked[name])
    return columns


async def _check_host(ctx: Context, row: Row, columns: dict[str, Any]) -> None:
    """Another image may ask for what the server's host is not, or for more of it than the server holds."""
    if all(row[name] == columns[name] for name in ("image_id", "image_properties")):
        return
    here = Destination(host=row["host"], hypervisor_hostname=row["hypervisor_hostname"])
    request = await request_for(ctx.db, {**row, **columns}, destination=here)
    held = await request_for(ctx.db, row, destination=here)
    if (request.resources, request.groups) != (held.resources, held.groups):
        raise BadRequest("The image asks for other resources of a host than the server has there.")
    if objections := await ctx.services.scheduler.objections(request):
        raise BadRequest(f"The server's host cannot have a server of this image: {', '.join(objections)}")
