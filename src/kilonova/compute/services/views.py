"""Views of services."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.api import api
from kilonova.hosts.heartbeat import is_up
from kilonova.http import Context, Field, View, col

TEXT = {"type": "string"}


def status(row: Any, ctx: Context | None = None) -> str:
    return "disabled" if row["disabled"] else "enabled"


def state(row: Any, ctx: Context) -> str:
    return "up" if is_up(row, ctx.now, ctx.services.config.hosts.down_seconds) else "down"


api.view(
    View(
        "service",
        {
            "id": col("uuid", {"type": "string", "format": "uuid"}),
            "binary": col("program", TEXT),
            "host": col("host", TEXT),
            "zone": col("zone", TEXT),
            "status": Field(status, {"type": "string", "enum": ["enabled", "disabled"]}),
            "state": Field(state, {"type": "string", "enum": ["up", "down"]}),
            "disabled_reason": col("disabled_reason", {"type": ["string", "null"]}),
            "forced_down": col("forced_down", {"type": "boolean"}),
            "updated_at": Field(lambda row, ctx: clock.iso_micro(row["last_seen_at"]), TEXT),
        },
    )
)
