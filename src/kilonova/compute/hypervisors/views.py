"""Views of hypervisors."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.hypervisors.model import ShownHypervisor
from kilonova.compute.hypervisors.uptime import format_uptime
from kilonova.compute.servers.server import instance_name
from kilonova.compute.services.views import STATE, STATUS, TEXT, state, status
from kilonova.http import Context, Field, View
from kilonova.http.views import OMIT, Value

NULLABLE = {"type": ["string", "null"]}
SERVERS = {
    "type": "array",
    "items": {"type": "object", "properties": {"uuid": TEXT, "name": TEXT}, "required": ["uuid", "name"]},
}


def column(name: str) -> Value:
    return lambda shown, ctx: getattr(shown.hypervisor, name)


def service(shown: ShownHypervisor, ctx: Context) -> dict[str, object]:
    return {"id": shown.service_uuid, "host": shown.hypervisor.host, "disabled_reason": shown.disabled_reason}


def numbered_service(shown: ShownHypervisor, ctx: Context) -> dict[str, object]:
    return {**service(shown, ctx), "id": shown.hypervisor.service_id}


def servers(shown: ShownHypervisor, ctx: Context) -> object:
    """Only shown if requested."""
    if shown.server_ids is None:
        return OMIT
    template = ctx.services.config.compute.instance_name_template
    return [{"uuid": server_id, "name": instance_name(template, server_id)} for server_id in shown.server_ids]


def servers_if_any(shown: ShownHypervisor, ctx: Context) -> object:
    return servers(shown, ctx) if shown.server_ids else OMIT


def uptime(shown: ShownHypervisor, ctx: Context) -> str | None:
    """None if the host is down or does not report its boot time."""
    booted_at = shown.hypervisor.booted_at
    if booted_at is None or state(shown, ctx) == "down":
        return None
    return format_uptime(booted_at, ctx.now)


SUMMARY = {
    "id": Field(column("uuid"), {"type": "string", "format": "uuid"}),
    "hypervisor_hostname": Field(column("hypervisor_hostname"), NULLABLE),
    "state": Field(state, STATE),
    "status": Field(lambda shown, ctx: status(shown), STATUS),
    "servers": Field(servers, SERVERS, optional=True),
}

api.view(View("hypervisor summary", SUMMARY))
api.view(
    View(
        "hypervisor",
        {
            **SUMMARY,
            "service": Field(service, {"type": ["object", "null"]}),
            "host_ip": Field(column("host_ip"), NULLABLE),
            "hypervisor_type": Field(column("hypervisor_type"), NULLABLE),
            "hypervisor_version": Field(column("hypervisor_version"), {"type": ["integer", "null"]}),
            "uptime": Field(uptime, NULLABLE),
        },
    )
)
