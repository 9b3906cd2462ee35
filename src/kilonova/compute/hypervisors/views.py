"""Views of hypervisors."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.hypervisors.uptime import format_uptime
from kilonova.compute.services.views import state, status
from kilonova.http import Context, Field, View, col
from kilonova.http.views import OMIT

TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
SERVERS = {
    "type": "array",
    "items": {"type": "object", "properties": {"uuid": TEXT, "name": TEXT}, "required": ["uuid", "name"]},
}


def service(row: Any, ctx: Context) -> dict[str, Any]:
    return {"id": row["service_uuid"], "host": row["host"], "disabled_reason": row["disabled_reason"]}


def numbered_service(row: Any, ctx: Context) -> dict[str, Any]:
    return {**service(row, ctx), "id": row["service_id"]}


def servers(row: Any, ctx: Context) -> Any:
    """Only shown if requested."""
    if "servers" not in row:
        return OMIT
    return [{"uuid": server["id"], "name": server["name"]} for server in row["servers"]]


def servers_if_any(row: Any, ctx: Context) -> Any:
    return servers(row, ctx) if row.get("servers") else OMIT


def uptime(row: Any, ctx: Context) -> str | None:
    """None if the host is down or does not report its boot time."""
    if row["booted_at"] is None or state(row, ctx) == "down":
        return None
    return format_uptime(row["booted_at"], ctx.now)


SUMMARY = {
    "id": col("uuid", {"type": "string", "format": "uuid"}),
    "hypervisor_hostname": col("hypervisor_hostname", NULLABLE),
    "state": Field(state, {"type": "string", "enum": ["up", "down"]}),
    "status": Field(status, {"type": "string", "enum": ["enabled", "disabled"]}),
    "servers": Field(servers, SERVERS, optional=True),
}

api.view(View("hypervisor summary", SUMMARY))
api.view(
    View(
        "hypervisor",
        {
            **SUMMARY,
            "service": Field(service, {"type": ["object", "null"]}),
            "host_ip": col("host_ip", NULLABLE),
            "hypervisor_type": col("hypervisor_type", NULLABLE),
            "hypervisor_version": col("hypervisor_version", {"type": ["integer", "null"]}),
            "uptime": Field(uptime, NULLABLE),
        },
    )
)
