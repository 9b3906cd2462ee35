"""/v2/images/{id}/file and actions: an image's data comes in, goes out, and is barred."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from kilonova import clock
from kilonova.http import Answer, Context
from kilonova.http.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    UnsupportedMediaType,
)
from kilonova.ids import new_id
from kilonova.image import model
from kilonova.image.access import is_admin, load, not_found
from kilonova.image.api import api
from kilonova.image.files import ImageFiles, Stored, TooBig, Upload
from kilonova.store import Row

log = logging.getLogger(__name__)

OCTETS = "application/octet-stream"


def files_of(ctx: Context) -> ImageFiles:
    return ImageFiles.of(ctx.services.config)


@api.route("PUT", "/v2/images/{image_id}/file", checks=["upload_image"], stream=True, status=204)
async def upload(ctx: Context, image_id: str) -> Answer:
    """Upload an image's data. If it breaks off, the image waits for data as before."""
    row = await load(ctx, ctx.db, image_id, "upload_image")
    _check_upload(ctx, row)
    await _check_status(ctx, row)
    data_id = new_id()
    part = files_of(ctx).begin(image_id, data_id, row["disk_format"])
    try:
        await _receive(ctx, part, image_id, data_id)
    except BaseException:
        if not await _give_up(ctx, part, image_id, data_id):
            raise
    finally:
        part.close()
    return Answer()


async def _receive(ctx: Context, part: Upload, image_id: str, data_id: str) -> None:
    async with ctx.db.transaction() as tx:
        begun = await model.begin_upload(tx, image_id, data_id, ctx.now)
    if not begun:
        raise Conflict(f"Image {image_id} is being uploaded or deleted by somebody else.")
    try:
        stored = await _stream(ctx, part)
    except TooBig as error:
        raise TooLarge(str(error)) from error
    async with ctx.db.transaction() as tx:
        done = await model.finish_upload(tx, image_id, data_id, stored, clock.now())
    if not done:
        raise Gone(f"Image {image_id} was deleted while its data was uploaded.")


async def _give_up(ctx: Context, part: Upload, image_id: str, data_id: str) -> bool:
    """Let the image wait for data again and leave no file, unless the end was lost and not the upload.

    With the database out of reach nobody knows which; the file then stays until `recover` can ask.
    """
    async with ctx.db.transaction() as tx:
        await model.give_up_upload(tx, image_id, data_id, clock.now())
        filled = await model.is_filled_by(tx, image_id, data_id)
    if not filled:
        part.abandon()
    return filled


async def _stream(ctx: Context, part: Upload) -> Stored:
    async for chunk in ctx.stream():
        await part.write(chunk)
    announced = ctx.headers.get("x-openstack-image-size")
    if announced is not None and int(announced) != part.size:
        raise BadRequest(f"{part.size} bytes arrived where X-OpenStack-Image-Size announced {announced}.")
    return await part.finish()


def _check_upload(ctx: Context, row: Row) -> None:
    kind = ctx.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != OCTETS:
        raise UnsupportedMediaType(f"Unsupported Content-Type {kind[:80]!r}: {OCTETS} is expected.")
    missing = [name for name in ("disk_format", "container_format") if row[name] is None]
    if missing:
        raise BadRequest(f"Properties {', '.join(missing)} must be set prior to saving data.")
    limit = ctx.services.config.image.max_bytes
    for header in ("x-openstack-image-size", "content-length"):
        text = ctx.headers.get(header)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 20):
            raise BadRequest(f"Invalid value of {header}: a number of bytes is expected.")
        if text is not None and int(text) > limit:
            raise TooLarge(f"The image data exceeds the limit of {limit} bytes.")


async def _check_status(ctx: Context, row: Row) -> None:
    if row["status"] == "saving" and not files_of(ctx).is_uploading(row["id"], row["data_id"]):
        # Whoever was uploading has died.
        files_of(ctx).remove(row["id"], row["data_id"])
        async with ctx.db.transaction() as tx:
            await model.give_up_upload(tx, row["id"], row["data_id"], ctx.now)
    elif row["status"] != "queued":
        raise Conflict(f"Image status transition from {row['status']} to saving is not allowed")


@api.route("GET", "/v2/images/{image_id}/file", checks=["download_image"])
async def download(ctx: Context, image_id: str) -> Answer:
    """Download an image's data."""
    row = await load(ctx, ctx.db, image_id, "download_image")
    if row["status"] == "deactivated" and not is_admin(ctx):
        raise Forbidden("The requested image has been deactivated. Image data download is forbidden.")
    if row["status"] not in ("active", "deactivated"):
        return Answer(status=204)
    try:
        chunks = files_of(ctx).read(image_id, row["data_id"])
    except FileNotFoundError:
        if await model.get(ctx.db, image_id) is None:
            raise not_found(image_id) from None
        log.error("the data of image %s is missing on disk", image_id)
        raise NotFound(f"The data of image {image_id} is missing.") from None
    headers = {"Content-Type": OCTETS, "Content-Length": str(row["size"]), "Content-MD5": row["checksum"]}
    return Answer(headers=headers, stream=_while_wanted(ctx, chunks))


async def _while_wanted(ctx: Context, chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The chunks until the client goes away: nobody else stops a stream that nobody reads."""
    gone = asyncio.create_task(_client_is_gone(ctx))
    try:
        async for chunk in chunks:
            if gone.done() and gone.result():
                return
            yield chunk
    finally:
        gone.cancel()
        await chunks.aclose()


async def _client_is_gone(ctx: Context) -> bool:
    for _ in range(2):  # the end of the request, then what comes after it: callers in this process never leave
        if (await ctx.receive())["type"] == "http.disconnect":
            return True
    return False


def forget_data(ctx: Context, row: Row) -> None:
    """Remove the data of an image that is deleted already; an upload under way finds out and removes its own."""
    if row["data_id"] is None:
        return
    files = files_of(ctx)
    if row["status"] != "saving" or not files.is_uploading(row["id"], row["data_id"]):
        files.remove(row["id"], row["data_id"])


@api.route("POST", "/v2/images/{image_id}/actions/deactivate", checks=["deactivate"], status=204)
async def deactivate(ctx: Context, image_id: str) -> Answer:
    """Bar an image's data from download."""
    return await _switch(ctx, image_id, "deactivate", "active", "deactivated")


@api.route("POST", "/v2/images/{image_id}/actions/reactivate", checks=["reactivate"], status=204)
async def reactivate(ctx: Context, image_id: str) -> Answer:
    """Allow an image's data to be downloaded again."""
    return await _switch(ctx, image_id, "reactivate", "deactivated", "active")


async def _switch(ctx: Context, image_id: str, rule: str, before: str, after: str) -> Answer:
    row = await load(ctx, ctx.db, image_id, rule)
    if row["status"] not in (before, after):
        raise Forbidden(f"Not allowed to {rule} image in status '{row['status']}'")
    async with ctx.db.transaction() as tx:
        await model.set_status(tx, image_id, before, after, ctx.now)
    return Answer()


@api.route("PUT", "/v2/images/{image_id}/stage", checks=["stage_image"], stream=True)
async def stage(ctx: Context, image_id: str) -> Answer:
    """Refused: there is no import here."""
    raise MethodNotAllowed("Image import is not offered here; upload the data by PUT …/file.")


@api.route("POST", "/v2/images/{image_id}/import", checks=["import_image"], stream=True)
async def import_image(ctx: Context, image_id: str) -> Answer:
    """Refused: there is no import here."""
    raise MethodNotAllowed("Image import is not offered here; upload the data by PUT …/file.")
