"""How instance actions and their events are shown."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, TEXT, host_id
from kilonova.http import Context, Field, View
from kilonova.http.views import Value

EVENTS = "os_compute_api:os-instance-actions:events"
DETAILS = "os_compute_api:os-instance-actions:events:details"


def _of(name: str) -> Value:
    return lambda item, ctx: getattr(item, name)


def _time(name: str) -> Value:
    def value(item: Any, ctx: Context) -> str | None:
        moment = getattr(item, name)
        return None if moment is None else clock.iso_micro(moment)

    return value


def _host_id(event: Any, ctx: Context) -> str:
    return host_id(ctx.token.project_id or "", event.host)


FIELDS = {
    "action": Field(_of("action"), TEXT),
    "instance_uuid": Field(_of("server_id"), TEXT),
    "request_id": Field(_of("request_id"), TEXT),
    "user_id": Field(_of("user_id"), NULLABLE),
    "project_id": Field(_of("project_id"), NULLABLE),
    "start_time": Field(_time("start_time"), TEXT),
    "message": Field(_of("message"), NULLABLE),
    "updated_at": Field(_time("updated_at"), TEXT),
}

api.view(View("action", FIELDS))
api.view(View("action in list", FIELDS))
api.view(
    View(
        "action event",
        {
            "event": Field(_of("event"), TEXT),
            "start_time": Field(_time("start_time"), TEXT),
            "finish_time": Field(_time("finish_time"), NULLABLE),
            "result": Field(_of("result"), NULLABLE),
            "traceback": Field(_of("traceback"), NULLABLE, EVENTS),
            "host": Field(_of("host"), NULLABLE, EVENTS),
            "hostId": Field(_host_id, TEXT),
            "details": Field(_of("details"), NULLABLE, DETAILS),
        },
    )
)
