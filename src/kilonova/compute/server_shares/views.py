"""The view of a server's share. Administrators also see where the host mounts it from."""

from __future__ import annotations

from msgspec import Struct

from kilonova.compute.api import api
from kilonova.compute.server_shares import model
from kilonova.compute.server_shares.model import ServerShare
from kilonova.compute.servers.views import TEXT
from kilonova.http import Field, View

_STATUS = {"type": "string", "enum": ["active", "attaching", "detaching", "error", "inactive"]}


class ShownShare(Struct, frozen=True):
    """`running`: whether the server's guest runs."""

    share: ServerShare
    running: bool


api.view(
    View(
        "server share",
        {
            "uuid": Field(lambda shown, ctx: shown.share.id, TEXT, "context_is_admin"),
            "share_id": Field(lambda shown, ctx: shown.share.share_id, TEXT),
            "status": Field(lambda shown, ctx: model.shown_status(shown.share, running=shown.running), _STATUS),
            "tag": Field(lambda shown, ctx: shown.share.tag, TEXT),
            "export_location": Field(lambda shown, ctx: shown.share.export_location, TEXT, "context_is_admin"),
        },
    )
)
