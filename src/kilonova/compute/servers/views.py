"""Views of servers. `model.enrich` adds status, task state and zone to the rows."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.servers import trusted_certificates
from kilonova.http import Context, Field, View, col
from kilonova.http.views import OMIT

ATTRIBUTES = "os_compute_api:os-extended-server-attributes"
HOST_STATUS = "os_compute_api:servers:show:host_status"
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
LIST_OF_TEXT = {"type": "array", "items": TEXT}
OBJECT = {"type": "object"}
LINKS = {"type": "array", "items": {"type": "object"}}
_WITH_PROGRESS = frozenset({"ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"})


@lru_cache(maxsize=65536)
def host_id(project_id: str, host: str | None) -> str:
    """A hash of host and project: equal for servers of a project on the same host."""
    return hashlib.sha224((project_id + host).encode()).hexdigest() if host else ""


def links(row: Any, ctx: Context) -> list[dict[str, str]]:
    path = f"/servers/{row['id']}"
    return [
        {"rel": "self", "href": ctx.url(path)},
        {"rel": "bookmark", "href": ctx.bookmark(path)},
    ]


def addresses(row: Any, ctx: Context) -> dict[str, Any]:
    """Addresses by network: fixed ones, then their floating IPs."""
    shown: dict[str, list[dict[str, Any]]] = {}
    for nic in row["nics"]:
        entries = shown.setdefault(nic["label"], [])
        entries += [_address(nic, address, "fixed") for address in nic["addresses"]]
    if row["floating"]:
        for nic in row["nics"]:
            found = row["floating"].get(nic["port_id"], ())
            shown[nic["label"]] += [_address(nic, address, "floating") for address in found]
    return shown


def _address(nic: dict[str, Any], address: str, kind: str) -> dict[str, Any]:
    return {
        "version": 6 if ":" in address else 4,
        "addr": address,
        "OS-EXT-IPS:type": kind,
        "OS-EXT-IPS-MAC:mac_addr": nic["mac"],
    }


def bare_addresses(row: Any, ctx: Context) -> dict[str, Any]:
    return {
        label: [{"version": entry["version"], "addr": entry["addr"]} for entry in entries]
        for label, entries in addresses(row, ctx).items()
    }


def image(row: Any, ctx: Context) -> Any:
    if not row["image_id"]:
        return ""
    return {
        "id": row["image_id"],
        "links": [{"rel": "bookmark", "href": ctx.bookmark(f"/images/{row['image_id']}")}],
        "properties": row["image_properties"],
    }


def image_without_properties(row: Any, ctx: Context) -> Any:
    shown = image(row, ctx)
    if shown:
        del shown["properties"]
    return shown


def flavor(row: Any, ctx: Context) -> dict[str, Any]:
    stored = row["flavor"]
    shown = {
        "original_name": stored["name"],
        "vcpus": stored["vcpus"],
        "ram": stored["ram"],
        "disk": stored["disk"],
        "ephemeral": stored["ephemeral"],
        "swap": stored["swap"],
    }
    if ctx.may("os_compute_api:servers:show:flavor-extra-specs"):
        shown["extra_specs"] = stored["extra_specs"]
    return shown


def flavor_link(row: Any, ctx: Context) -> dict[str, Any]:
    path = f"/flavors/{row['flavor_id']}"
    return {"id": row["flavor_id"], "links": [{"rel": "bookmark", "href": ctx.bookmark(path)}]}


def volumes_attached(row: Any, ctx: Context) -> list[dict[str, Any]]:
    return [
        {"id": device["volume_id"], "delete_on_termination": device["delete_on_termination"]}
        for device in row["volumes"]
    ]


def volume_ids(row: Any, ctx: Context) -> list[dict[str, Any]]:
    return [{"id": device["volume_id"]} for device in row["volumes"]]


def security_groups(row: Any, ctx: Context) -> Any:
    names = {name: None for nic in row["nics"] for name in nic["security_groups"]}
    return [{"name": name} for name in names] or OMIT


def fault(row: Any, ctx: Context) -> Any:
    """The server's fault: of its ERROR state or of its last failed action."""
    stored = row["fault"]
    if stored is None:
        return OMIT
    shown = {"code": stored["code"], "created": clock.iso(stored["created_at"]), "message": stored["message"]}
    if stored.get("details") and ctx.may(ATTRIBUTES):
        shown["details"] = stored["details"]
    return shown


def host_status(row: Any, ctx: Context) -> str:
    return str(row["host_status"])


def progress(row: Any, ctx: Context) -> Any:
    if row["status"] not in _WITH_PROGRESS:
        return OMIT
    return row["progress"] if row["task_state"] else 0 if row["status"] == "BUILD" else 100


def _time(name: str) -> Field:
    return Field(lambda row, ctx: clock.iso(row[name]), TEXT)


def _micro(name: str) -> Field:
    return Field(lambda row, ctx: row[name] and clock.iso_micro(row[name]), NULLABLE)


def _attribute(value: Any, schema: dict[str, Any] = NULLABLE) -> Field:
    if isinstance(value, str):
        return col(value, schema, ATTRIBUTES)
    return Field(value, schema, ATTRIBUTES)


FIELDS = {
    "id": col("id", TEXT),
    "name": col("name", TEXT),
    "status": col("status", TEXT),
    "tenant_id": col("project_id", TEXT),
    "user_id": col("user_id", TEXT),
    "metadata": col("metadata", OBJECT),
    "hostId": Field(lambda row, ctx: host_id(row["project_id"], row["host"]), TEXT),
    "image": Field(image),
    "flavor": Field(flavor, OBJECT),
    "created": _time("created_at"),
    "updated": _time("updated_at"),
    "addresses": Field(addresses, OBJECT),
    "accessIPv4": Field(lambda row, ctx: row["access_ip_v4"] or "", TEXT),
    "accessIPv6": Field(lambda row, ctx: row["access_ip_v6"] or "", TEXT),
    "links": Field(links, LINKS),
    "OS-DCF:diskConfig": col("disk_config", TEXT),
    "progress": Field(progress, {"type": "integer"}, optional=True),
    "OS-EXT-AZ:availability_zone": col("zone", TEXT),
    "config_drive": Field(lambda row, ctx: "True" if row["config_drive"] else "", TEXT),
    "key_name": col("key_name", NULLABLE),
    "OS-SRV-USG:launched_at": _micro("launched_at"),
    "OS-SRV-USG:terminated_at": _micro("terminated_at"),
    "OS-EXT-SRV-ATTR:host": _attribute("host"),
    "OS-EXT-SRV-ATTR:instance_name": _attribute(lambda row, ctx: f"instance-{row['id'][:8]}", TEXT),
    "OS-EXT-SRV-ATTR:hypervisor_hostname": _attribute("hypervisor_hostname"),
    "OS-EXT-SRV-ATTR:reservation_id": _attribute("reservation_id"),
    "OS-EXT-SRV-ATTR:launch_index": _attribute("launch_index", {"type": "integer"}),
    "OS-EXT-SRV-ATTR:hostname": col("hostname", TEXT),
    "OS-EXT-SRV-ATTR:kernel_id": _attribute(lambda row, ctx: row["image_properties"].get("kernel_id", "")),
    "OS-EXT-SRV-ATTR:ramdisk_id": _attribute(lambda row, ctx: row["image_properties"].get("ramdisk_id", "")),
    "OS-EXT-SRV-ATTR:root_device_name": _attribute("root_device_name"),
    "OS-EXT-SRV-ATTR:user_data": _attribute("user_data"),
    "OS-EXT-STS:task_state": col("task_state", NULLABLE),
    "OS-EXT-STS:vm_state": col("vm_state", TEXT),
    "OS-EXT-STS:power_state": col("power_state", {"type": "integer"}),
    "os-extended-volumes:volumes_attached": Field(volumes_attached, {"type": "array"}),
    "host_status": Field(host_status, TEXT, HOST_STATUS),
    "description": col("description", NULLABLE),
    "locked": col("locked", {"type": "boolean"}),
    "locked_reason": col("locked_reason", NULLABLE),
    "tags": col("tags", LIST_OF_TEXT),
    "trusted_image_certificates": Field(
        lambda row, ctx: trusted_certificates.shown(row["trusted_certificates"]), {"type": ["array", "null"]}
    ),
    "server_groups": col("server_groups", LIST_OF_TEXT),
    "pinned_availability_zone": col("pinned_zone", NULLABLE),
    "scheduler_hints": col("scheduler_hints", OBJECT),
    "security_groups": Field(security_groups, {"type": "array"}, optional=True),
    "fault": Field(fault, OBJECT, optional=True),
}

# Before 2.75 responses of PUT and rebuild show few of these fields.
UPDATE_ALWAYS = frozenset(
    {
        *("id", "name", "status", "tenant_id", "user_id", "metadata", "hostId", "image", "flavor", "created"),
        *("updated", "addresses", "accessIPv4", "accessIPv6", "links", "OS-DCF:diskConfig", "progress", "fault"),
        *("locked", "description", "tags", "trusted_image_certificates", "server_groups", "locked_reason"),
        *("pinned_availability_zone", "scheduler_hints"),
    }
)

# The response of a rebuild shows user data.
REBUILD_FIELDS = {
    **{name: field for name, field in FIELDS.items() if name != "OS-EXT-SRV-ATTR:user_data"},
    "user_data": col("user_data", NULLABLE),
    "adminPass": col("admin_pass", TEXT),
}
REBUILD_ALWAYS = UPDATE_ALWAYS | {"key_name", "user_data", "adminPass"}

api.view(View("server", FIELDS))
api.view(View("server detail", {name: field for name, field in FIELDS.items() if name != "server_groups"}))
api.view(View("server update", FIELDS))
api.view(View("server rebuild", REBUILD_FIELDS))
api.view(View("server brief", {"id": FIELDS["id"], "name": FIELDS["name"], "links": FIELDS["links"]}))
