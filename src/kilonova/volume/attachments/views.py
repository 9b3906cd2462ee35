"""Views of attachments."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova import clock
from kilonova.http import Context, Field, View, col
from kilonova.store import Row
from kilonova.volume.api import api

TEXT = {"type": "string"}
OPTIONAL = {"type": ["string", "null"]}
SHORT = {
    "id": col("id", TEXT),
    "volume_id": col("volume_id", TEXT),
    "instance": col("server_id", OPTIONAL),
    "status": col("status", TEXT),
}


def _attached_at(row: Row, ctx: Context) -> str | None:
    return clock.iso_micro(row["attached_at"]) if row["attached_at"] is not None else None


def _connection(row: Row, ctx: Context) -> Any:
    return orjson.loads(row["connection"]) if row["connection"] else {}


api.view(View("attachment", SHORT))
api.view(
    View(
        "attachment detail",
        {
            **SHORT,
            "attach_mode": col("mode", TEXT),
            "attached_at": Field(_attached_at, OPTIONAL),
            # Detached attachments are deleted.
            "detached_at": Field(lambda row, ctx: None, {"type": "null"}),
            "connection_info": Field(_connection, {"type": "object"}),
        },
    )
)
