"""Views of attachments."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Field, View, attribute
from kilonova.volume.api import api
from kilonova.volume.attachments.model import Attachment

CONNECTION_INFO = "kilonova:volumes:connection_info"
TEXT = {"type": "string"}
OPTIONAL = {"type": ["string", "null"]}
SHORT = {
    "id": attribute("id", TEXT),
    "volume_id": attribute("volume_id", TEXT),
    "instance": attribute("server_id", OPTIONAL),
    "status": attribute("status", TEXT),
}


def _attached_at(attachment: Attachment, ctx: Context) -> str | None:
    return clock.iso_micro(attachment.attached_at) if attachment.attached_at is not None else None


def _connection(attachment: Attachment, ctx: Context) -> dict[str, object]:
    """The connection info, empty for users: it names paths, addresses and secrets of the back end."""
    return (attachment.connection or {}) if ctx.may(CONNECTION_INFO) else {}


api.view(View("attachment", SHORT))
api.view(
    View(
        "attachment detail",
        {
            **SHORT,
            "attach_mode": attribute("mode", TEXT),
            "attached_at": Field(_attached_at, OPTIONAL),
            # Detached attachments are deleted.
            "detached_at": Field(lambda attachment, ctx: None, {"type": "null"}),
            "connection_info": Field(_connection, {"type": "object"}),
        },
    )
)
