"""Route that uploads an image's data. Image import is refused."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, Gone, MethodNotAllowed, TooLarge, UnsupportedMediaType
from kilonova.ids import new_id
from kilonova.image.api import api
from kilonova.image.authorization import load
from kilonova.image.files import ImageFiles, Upload, UploadResult, UploadTooLarge
from kilonova.image.images import model, quotas
from kilonova.image.images.model import Image

MEDIA_TYPE = "application/octet-stream"


def _files(ctx: Context) -> ImageFiles:
    return ImageFiles.of(ctx.services.config)


@api.route("PUT", "/v2/images/{image_id}/file", checks=["upload_image"], stream=True, status=204)
async def upload_data(ctx: Context, image_id: str) -> Response:
    """Upload an image's data. After an interrupted upload the image is queued again."""
    image = await load(ctx, ctx.db, image_id, "upload_image")
    remaining = await quotas.remaining_bytes(ctx.db, image.owner, ctx.services.config.image_quota)
    _check_upload(ctx, image, remaining)
    await _check_status(ctx, image)
    data_id = new_id()
    upload = _files(ctx).begin(image_id, data_id, image.disk_format)
    try:
        await _receive(ctx, upload, image, data_id, remaining)
    except BaseException:
        if not await _abort(ctx, upload, image_id, data_id):
            raise
    finally:
        upload.close()
    return Response()


async def _receive(ctx: Context, upload: Upload, image: Image, data_id: str, remaining: int | None) -> None:
    image_id = image.id
    async with ctx.db.transaction() as tx:
        begun = await model.begin_upload(tx, image_id, data_id, ctx.now)
    if not begun:
        raise Conflict(f"Image {image_id} is being uploaded or deleted by another request.")
    try:
        stored = await _stream(ctx, upload, remaining)
    except UploadTooLarge as error:
        upload.discard()  # now, because a full disk may keep the database from recording the end of the upload
        raise TooLarge(str(error)) from error
    async with ctx.db.transaction() as tx:
        await quotas.check_size(tx, image.owner, stored.size, ctx.services.config.image_quota)
        done = await model.finish_upload(tx, image_id, data_id, stored, clock.now())
    if not done:
        raise Gone(f"Image {image_id} was deleted while its data was uploaded.")


async def _abort(ctx: Context, upload: Upload, image_id: str, data_id: str) -> bool:
    """Queue the image again and remove the file, unless the upload was committed and only the reply was lost.

    If the database cannot be reached, the file stays until `clean_up_uploads` can decide.
    """
    async with ctx.db.transaction() as tx:
        await model.reset_upload(tx, image_id, data_id, clock.now())
        committed = await model.is_uploaded(tx, image_id, data_id)
    if not committed:
        upload.discard()
    return committed


async def _stream(ctx: Context, upload: Upload, remaining: int | None) -> UploadResult:
    async for chunk in ctx.stream():
        quotas.check_received(remaining, upload.size + len(chunk), ctx.services.config.image_quota)
        await upload.write(chunk)
    announced = ctx.headers.get("x-openstack-image-size")
    if announced is not None and int(announced) != upload.size:
        raise BadRequest(f"X-OpenStack-Image-Size is {announced}, but the data has {upload.size} bytes.")
    return await upload.finish()


def _check_upload(ctx: Context, image: Image, remaining: int | None) -> None:
    kind = ctx.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MEDIA_TYPE:
        raise UnsupportedMediaType(f"Unsupported Content-Type {kind[:80]!r}: {MEDIA_TYPE} is expected.")
    missing = [name for name in ("disk_format", "container_format") if getattr(image, name) is None]
    if missing:
        raise BadRequest(f"Properties {', '.join(missing)} must be set prior to saving data.")
    limit = ctx.services.config.image.max_bytes
    for header in ("x-openstack-image-size", "content-length"):
        text = ctx.headers.get(header)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 20):
            raise BadRequest(f"Invalid value of header {header}: a number of bytes is expected.")
        if text is not None and int(text) > limit:
            raise TooLarge(f"The image data exceeds the limit of {limit} bytes.")
        if text is not None:
            quotas.check_received(remaining, int(text), ctx.services.config.image_quota)


async def _check_status(ctx: Context, image: Image) -> None:
    if image.status == "saving" and image.data_id and not _files(ctx).is_uploading(image.id, image.data_id):
        # The process of an earlier upload has died.
        _files(ctx).remove(image.id, image.data_id)
        async with ctx.db.transaction() as tx:
            await model.reset_upload(tx, image.id, image.data_id, ctx.now)
    elif image.status != "queued":
        raise Conflict(f"Image status transition from {image.status} to saving is not allowed")


@api.route("PUT", "/v2/images/{image_id}/stage", authenticated=True, stream=True)
async def stage(ctx: Context, image_id: str) -> Response:
    """Refused: image import is not supported."""
    raise MethodNotAllowed("Image import is not supported; upload the data with PUT …/file.")


@api.route("POST", "/v2/images/{image_id}/import", authenticated=True, stream=True)
async def import_image(ctx: Context, image_id: str) -> Response:
    """Refused: image import is not supported."""
    raise MethodNotAllowed("Image import is not supported; upload the data with PUT …/file.")
