"""Routes of how volumes of a type are encrypted: never, for the back end keeps them as they are."""

from __future__ import annotations

from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.volume.api import api
from kilonova.volume.types import schemas
from kilonova.volume.types.lookup import visible

PATH = "/types/{type_id}/encryption"
RULE = "volume_extension:volume_type_encryption:"


@api.route("GET", PATH, policy=RULE + "get", query={})
async def show(ctx: Context, type_id: str) -> Answer:
    """Show the encryption of a volume type: nothing."""
    await visible(ctx, type_id)
    return Answer({})


@api.route("POST", PATH, policy=RULE + "create", body=schemas.ENCRYPTION, query={})
async def create(ctx: Context, type_id: str) -> Answer:
    """Refuse to encrypt the volumes of a type."""
    await visible(ctx, type_id)
    raise BadRequest("Encrypted volumes are not offered: the back end of this service keeps volumes unencrypted.")
