"""How messages are shown."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Field, View, col
from kilonova.volume.api import api

_TEXT = {"type": "string"}

api.view(
    View(
        "message",
        {
            "id": col("id", _TEXT),
            "event_id": col("event_id", _TEXT),
            "message_level": col("level", _TEXT),
            "resource_type": col("resource_type", _TEXT),
            "resource_uuid": col("resource_id", _TEXT),
            "user_message": col("text", _TEXT),
            "request_id": col("request_id", _TEXT),
            "created_at": Field(lambda row, ctx: clock.iso_micro(row["created_at"]), _TEXT),
            "guaranteed_until": Field(lambda row, ctx: clock.iso_micro(row["expires_at"]), _TEXT),
            "links": Field(lambda row, ctx: ctx.links(f"/messages/{row['id']}"), {"type": "array"}),
        },
    )
)
