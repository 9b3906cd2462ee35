"""Views of services and hosts."""

from __future__ import annotations

from collections.abc import Callable

from kilonova import clock
from kilonova.http import Context, Field, View, attribute
from kilonova.http.schema import Schema
from kilonova.http.views import OMIT
from kilonova.volume.api import api
from kilonova.volume.services.model import VOLUME, Service

_TEXT = {"type": "string"}
_NULLABLE = {"type": ["string", "null"]}


def status_word(disabled: bool) -> str:
    return "disabled" if disabled else "enabled"


def _status(service: Service, ctx: Context) -> str:
    return status_word(service.disabled)


def _seen(service: Service, ctx: Context) -> str | None:
    return None if service.last_seen_at is None else clock.iso_micro(service.last_seen_at)


def _state(up: str, down: str) -> Callable[[Service, Context], str]:
    return lambda service, ctx: up if service.up else down


def _of_back_end(value: Callable[[Service, Context], object], schema: Schema) -> Field:
    """A field that only cinder-volume has."""
    return Field(lambda service, ctx: value(service, ctx) if service.program == VOLUME else OMIT, schema, optional=True)


api.view(
    View(
        "volume service",
        {
            "binary": attribute("program", _TEXT),
            "host": attribute("host", _TEXT),
            "zone": attribute("zone", _TEXT),
            "status": Field(_status, {"type": "string", "enum": ["enabled", "disabled"]}),
            "state": Field(_state("up", "down"), {"type": "string", "enum": ["up", "down"]}),
            "updated_at": Field(_seen, _NULLABLE),
            "disabled_reason": attribute("disabled_reason", _NULLABLE),
            "cluster": Field(lambda service, ctx: None, {"type": "null"}),
            "replication_status": _of_back_end(lambda service, ctx: "disabled", _TEXT),
            "active_backend_id": _of_back_end(lambda service, ctx: None, {"type": "null"}),
            "frozen": _of_back_end(lambda service, ctx: False, {"type": "boolean"}),
            "backend_state": _of_back_end(_state("up", "down"), _TEXT),
        },
    )
)
api.view(
    View(
        "volume host",
        {
            "host_name": attribute("host", _TEXT),
            "service": attribute("program", _TEXT),
            "zone": attribute("zone", _TEXT),
            "service-state": Field(_status, _TEXT),
            "service-status": Field(_state("available", "unavailable"), _TEXT),
            "last-update": Field(_seen, _NULLABLE),
        },
    )
)
