"""Routes for hosts, which have tickets and no tokens: show an image, download and upload its data.

The control plane calls the image service with its own token, so hosts need none, whichever image service it is.
docs/decisions/0022-tickets.md says why.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from kilonova.http import Context, Response
from kilonova.http.errors import Forbidden, Unauthorized
from kilonova.image.api import api
from kilonova.image.authorization import image_not_found
from kilonova.image.client import Image
from kilonova.image.images.download import until_disconnect
from kilonova.tickets import HEADER, ExpiredTicket, InvalidTicket

_SHOWN = (*("id", "status", "size", "disk_format", "container_format", "checksum", "os_hash_algo", "os_hash_value"),)


@api.route("GET", "/kilonova/v1/images/{image_id}", ticket=True)
async def show(ctx: Context, image_id: str) -> Response:
    """Show a host what it needs to read or write the image of its ticket."""
    image = await _find(ctx, image_id, "GET", "PUT")
    return Response({name: getattr(image, name) for name in _SHOWN})


@api.route("GET", "/kilonova/v1/images/{image_id}/file", ticket=True)
async def download(ctx: Context, image_id: str) -> Response:
    """Download the data of the ticket's image. The ticket is checked at the start only."""
    image = await _find(ctx, image_id, "GET")
    if image.status == "deactivated" and not ctx.services.config.is_built_in("image"):
        # Glance would send the data, because the service user is an administrator. The built-in service sends it.
        raise Forbidden(f"Image {image_id} is deactivated: its data cannot be downloaded.")
    chunks = _download(ctx, image_id)
    # Errors of the image service appear before the first chunk, and so before the response.
    first = await anext(chunks, b"")
    return Response(
        headers={"Content-Type": "application/octet-stream"}, stream=until_disconnect(ctx, _join(first, chunks))
    )


@api.route("PUT", "/kilonova/v1/images/{image_id}/file", ticket=True, stream=True, status=204)
async def upload(ctx: Context, image_id: str) -> Response:
    """Upload the data of the ticket's image. The ticket is checked at the start only."""
    image = await _find(ctx, image_id, "PUT")
    client = ctx.services.image
    await client.upload(image_id, ctx.stream(), await client.owner_token(ctx.services.identity, image.owner))
    return Response()


async def _find(ctx: Context, image_id: str, *methods: str) -> Image:
    await _check_ticket(ctx, image_id, methods)
    image = await ctx.services.image.show(image_id, await ctx.services.identity.token())
    if image is None:
        raise image_not_found(image_id)
    return image


async def _check_ticket(ctx: Context, image_id: str, methods: tuple[str, ...]) -> None:
    """Refuse a request without a ticket for this image, or whose operation has ended or works on another host now.

    401 asks for a new ticket, 403 is final.
    """
    # An older agent sends its ticket as the token, which it takes it for.
    text = ctx.headers.get(HEADER.lower()) or ctx.headers.get("x-auth-token")
    if not text:
        raise Unauthorized(f"The request needs a ticket in the header {HEADER}.")
    try:
        ticket = ctx.services.image_tickets.check(text)
    except ExpiredTicket:
        raise Unauthorized("The ticket has expired.") from None
    except InvalidTicket:
        raise Forbidden("The ticket is not valid.") from None
    ctx.audit["user"] = {"type": "host", "name": ticket.host}
    if ticket.image_id != image_id or ticket.method not in methods:
        raise Forbidden("The ticket is for another image or another method.")
    if not await ctx.services.compute_status.works_on_host(ticket.operation_id, ticket.host):
        raise Forbidden("The ticket's operation has ended, or works on another host.")


async def _download(ctx: Context, image_id: str) -> AsyncGenerator[bytes, None]:
    token = await ctx.services.identity.token()
    async with ctx.services.image.download(image_id, token) as chunks:
        async for chunk in chunks:
            yield chunk


async def _join(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        if first:
            yield first
        async for chunk in rest:
            yield chunk
    finally:
        await rest.aclose()
