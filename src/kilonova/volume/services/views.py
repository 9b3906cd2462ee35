"""Views of services and hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova import clock
from kilonova.http import Context, Field, View, col
from kilonova.http.views import OMIT
from kilonova.volume.api import api
from kilonova.volume.services.model import VOLUME

_TEXT = {"type": "string"}
_NULLABLE = {"type": ["string", "null"]}


def status(row: Any, ctx: Context | None = None) -> str:
    return "disabled" if row["disabled"] else "enabled"


def _seen(row: Any, ctx: Context) -> str | None:
    return None if row["last_seen_at"] is None else clock.iso_micro(row["last_seen_at"])


def _state(up: str, down: str) -> Callable[[Any, Context], str]:
    return lambda row, ctx: up if row["up"] else down


def _of_back_end(value: Callable[[Any, Context], Any], schema: dict[str, Any]) -> Field:
    """A field that only cinder-volume has."""
    return Field(lambda row, ctx: value(row, ctx) if row["program"] == VOLUME else OMIT, schema, optional=True)


api.view(
    View(
        "volume service",
        {
            "binary": col("program", _TEXT),
            "host": col("host", _TEXT),
            "zone": col("zone", _TEXT),
            "status": Field(status, {"type": "string", "enum": ["enabled", "disabled"]}),
            "state": Field(_state("up", "down"), {"type": "string", "enum": ["up", "down"]}),
            "updated_at": Field(_seen, _NULLABLE),
            "disabled_reason": col("disabled_reason", _NULLABLE),
            "cluster": Field(lambda row, ctx: None, {"type": "null"}),
            "replication_status": _of_back_end(lambda row, ctx: "disabled", _TEXT),
            "active_backend_id": _of_back_end(lambda row, ctx: None, {"type": "null"}),
            "frozen": _of_back_end(lambda row, ctx: False, {"type": "boolean"}),
            "backend_state": _of_back_end(_state("up", "down"), _TEXT),
        },
    )
)
api.view(
    View(
        "volume host",
        {
            "host_name": col("host", _TEXT),
            "service": col("program", _TEXT),
            "zone": col("zone", _TEXT),
            "service-state": Field(status, _TEXT),
            "service-status": Field(_state("available", "unavailable"), _TEXT),
            "last-update": Field(_seen, _NULLABLE),
        },
    )
)
