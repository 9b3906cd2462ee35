"""Views of services."""

from __future__ import annotations

from typing import Protocol

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.zones.model import ZonedService
from kilonova.hosts.heartbeat import Reporting, is_up
from kilonova.http import Context, Field, View, attribute
from kilonova.http.schema import Schema

TEXT = {"type": "string"}
STATUS = {"type": "string", "enum": ["enabled", "disabled"]}
STATE = {"type": "string", "enum": ["up", "down"]}


class Switched(Protocol):
    @property
    def disabled(self) -> bool: ...


def status(service: Switched) -> str:
    return "disabled" if service.disabled else "enabled"


def state(service: Reporting, ctx: Context) -> str:
    return "up" if is_up(service, ctx.now, ctx.services.config.hosts.down_seconds) else "down"


def _of(name: str, schema: Schema = TEXT) -> Field:
    return Field(lambda shown, ctx: getattr(shown.service, name), schema)


def _status(shown: ZonedService, ctx: Context) -> str:
    return status(shown.service)


def _state(shown: ZonedService, ctx: Context) -> str:
    return state(shown.service, ctx)


def _updated_at(shown: ZonedService, ctx: Context) -> str:
    return clock.iso_micro(shown.service.last_seen_at)


api.view(
    View(
        "service",
        {
            "id": _of("uuid", {"type": "string", "format": "uuid"}),
            "binary": _of("program"),
            "host": _of("host"),
            "zone": attribute("zone", TEXT),
            "status": Field(_status, STATUS),
            "state": Field(_state, STATE),
            "disabled_reason": _of("disabled_reason", {"type": ["string", "null"]}),
            "forced_down": _of("forced_down", {"type": "boolean"}),
            "updated_at": Field(_updated_at, TEXT),
        },
    )
)
