"""Routes of the encryption of volume types. Encryption is not supported."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.volume.api import api
from kilonova.volume.types import schemas
from kilonova.volume.types.lookup import get_visible

PATH = "/types/{type_id}/encryption"
RULE = "volume_extension:volume_type_encryption:"


@api.route("GET", PATH, policy=RULE + "get", query={})
async def show(ctx: Context, type_id: str) -> Response:
    """Show the encryption of a volume type: always empty."""
    await get_visible(ctx, type_id)
    return Response({})


@api.route("POST", PATH, policy=RULE + "create", body=schemas.ENCRYPTION, query={})
async def create(ctx: Context, type_id: str) -> Response:
    """Refuse to encrypt the volumes of a type."""
    await get_visible(ctx, type_id)
    raise BadRequest("Encrypted volumes are not supported by the back end of this service.")
