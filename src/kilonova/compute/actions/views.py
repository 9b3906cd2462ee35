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
    return lambda item, ctx: _written(getattr(item, name))


def _written(moment: float | None) -> str | None:
    return None if moment is None else clock.iso_micro(moment)


# An event is shown together with the project of its server.


def _event(name: str) -> Value:
    return lambda item, ctx: getattr(item[0], name)


def _moment(name: str) -> Value:
    return lambda item, ctx: _written(getattr(item[0], name))


def _host_id(item: Any, ctx: Context) -> str:
    """As the server's own."""
    event, project_id = item
    return host_id(project_id, event.host)


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
            "event": Field(_event("event"), TEXT),
            "start_time": Field(_moment("start_time"), TEXT),
            "finish_time": Field(_moment("finish_time"), NULLABLE),
            "result": Field(_event("result"), NULLABLE),
            "traceback": Field(_event("traceback"), NULLABLE, EVENTS),
            "host": Field(_event("host"), NULLABLE, EVENTS),
            "hostId": Field(_host_id, TEXT),
            "details": Field(_event("details"), NULLABLE, DETAILS),
        },
    )
)
