"""Route that downloads an image's data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from kilonova.http import Context, Response
from kilonova.http.errors import Forbidden, NotFound
from kilonova.image.api import api
from kilonova.image.authorization import image_not_found, is_admin, load
from kilonova.image.files import ImageFiles
from kilonova.image.images import model

log = logging.getLogger(__name__)


@api.route("GET", "/v2/images/{image_id}/file", checks=["download_image"])
async def download(ctx: Context, image_id: str) -> Response:
    """Download an image's data."""
    image = await load(ctx, ctx.db, image_id, "download_image")
    if image.status == "deactivated" and not is_admin(ctx):
        raise Forbidden("The requested image has been deactivated. Image data download is forbidden.")
    if image.status not in ("active", "deactivated") or image.data_id is None:
        return Response(status=204)
    try:
        chunks = ImageFiles.of(ctx.services.config).read(image_id, image.data_id)
    except FileNotFoundError:
        if await model.get(ctx.db, image_id) is None:
            raise image_not_found(image_id) from None
        log.error("the data of image %s is missing on disk", image_id)
        raise NotFound(f"The data of image {image_id} is missing.") from None
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Length": str(image.size),
        "Content-MD5": image.checksum or "",
    }
    return Response(headers=headers, stream=until_disconnect(ctx, chunks))


async def until_disconnect(ctx: Context, chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The chunks until the client disconnects: the server does not stop a stream by itself."""
    disconnected = asyncio.create_task(_client_disconnected(ctx))
    try:
        async for chunk in chunks:
            if disconnected.done() and disconnected.result():
                return
            yield chunk
    finally:
        disconnected.cancel()
        await chunks.aclose()


async def _client_disconnected(ctx: Context) -> bool:
    # The first message ends the request body. The second is the disconnect, which callers in this process never send.
    for _ in range(2):
        if (await ctx.receive())["type"] == "http.disconnect":
            return True
    return False
