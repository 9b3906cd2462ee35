"""Image tickets: what hosts use instead of a token to read or write the data of one image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from msgspec import Struct

from kilonova.tickets import Tickets

if TYPE_CHECKING:
    from kilonova.identity.token_keys import KeySource


class ImageTicket(Struct, frozen=True):
    """GET permits to read the image's data, PUT to upload it, for one host and as long as the operation needs it."""

    image_id: str
    method: Literal["GET", "PUT"]
    host: str
    operation_id: str


def image_tickets(keys: KeySource) -> Tickets[ImageTicket]:
    return Tickets("image", ImageTicket, keys)


def image_path(image_id: str) -> str:
    """The path below the image service's URL at which hosts see an image. Its data is at `…/file`."""
    return f"/kilonova/v1/images/{quote(image_id, safe='')}"
