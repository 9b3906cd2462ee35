"""Views of servers, with the facts that `shown_server.enrich` adds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.servers.server import Interface, Server, instance_name
from kilonova.compute.servers.shown_server import ShownServer
from kilonova.http import Context, Field, View, attribute
from kilonova.http.schema import Schema
from kilonova.http.views import OMIT

ATTRIBUTES = "os_compute_api:os-extended-server-attributes"
HOST_STATUS = "os_compute_api:servers:show:host_status"
TEXT: Schema = {"type": "string"}
NULLABLE: Schema = {"type": ["string", "null"]}
LIST_OF_TEXT: Schema = {"type": "array", "items": TEXT}
OBJECT: Schema = {"type": "object"}
LINKS: Schema = {"type": "array", "items": {"type": "object"}}
Document = dict[str, object]
# The namespaces of image properties of compute, and older names.
_KNOWN_PROPERTY = re.compile(
    r"(hw|img|os)_\w+(\.\d+)?|trait:\w+|architecture|auto_disk_config|hypervisor_type|hypervisor_version_requires"
    r"|vm_mode|vmware_\w+"
)
_MOVES = frozenset({"MIGRATING", "RESIZE"})
_WITH_PROGRESS = frozenset({"ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"})


@lru_cache(maxsize=65536)
def host_id(project_id: str, host: str | None) -> str:
    """A hash of host and project: equal for servers of a project on the same host."""
    return hashlib.sha224((project_id + host).encode()).hexdigest() if host else ""


def links(server_id: str, ctx: Context) -> list[dict[str, str]]:
    path = f"/servers/{server_id}"
    return [
        {"rel": "self", "href": ctx.url(path)},
        {"rel": "bookmark", "href": ctx.bookmark(path)},
    ]


def addresses_of(server: Server, floating_ips: Mapping[str, Sequence[str]]) -> dict[str, list[Document]]:
    """Addresses by network: fixed ones, then their floating IPs, which are given by port."""
    found: dict[str, list[Document]] = {}
    for interface in server.nics:
        entries = found.setdefault(interface.label, [])
        entries += [_address(interface, address, "fixed") for address in interface.addresses]
    if floating_ips:
        for interface in server.nics:
            floating = floating_ips.get(interface.port_id, ())
            found[interface.label] += [_address(interface, address, "floating") for address in floating]
    return found


def _address(interface: Interface, address: str, kind: str) -> Document:
    return {
        "version": 6 if ":" in address else 4,
        "addr": address,
        "OS-EXT-IPS:type": kind,
        "OS-EXT-IPS-MAC:mac_addr": interface.mac,
    }


def bare_addresses_of(server: Server, floating_ips: Mapping[str, Sequence[str]]) -> dict[str, list[Document]]:
    return {
        label: [{"version": entry["version"], "addr": entry["addr"]} for entry in entries]
        for label, entries in addresses_of(server, floating_ips).items()
    }


def addresses(shown: ShownServer, ctx: Context) -> dict[str, list[Document]]:
    return addresses_of(shown.server, shown.floating)


def bare_addresses(shown: ShownServer, ctx: Context) -> dict[str, list[Document]]:
    return bare_addresses_of(shown.server, shown.floating)


def image(shown: ShownServer, ctx: Context) -> Document | str:
    """The image, with the image properties that compute knows."""
    found = image_without_properties(shown, ctx)
    if isinstance(found, str):
        return found
    stored = shown.server.image_properties.items()
    return {**found, "properties": {name: value for name, value in stored if _KNOWN_PROPERTY.fullmatch(name)}}


def image_without_properties(shown: ShownServer, ctx: Context) -> Document | str:
    image_id = shown.server.image_id
    if not image_id:
        return ""
    return {"id": image_id, "links": [{"rel": "bookmark", "href": ctx.bookmark(f"/images/{image_id}")}]}


def flavor(shown: ShownServer, ctx: Context) -> Document:
    stored = shown.server.flavor
    found: Document = {
        "original_name": stored.name,
        "vcpus": stored.vcpus,
        "ram": stored.ram,
        "disk": stored.disk,
        "ephemeral": stored.ephemeral,
        "swap": stored.swap,
    }
    if ctx.may("os_compute_api:servers:show:flavor-extra-specs"):
        found["extra_specs"] = stored.extra_specs
    return found


def flavor_link(shown: ShownServer, ctx: Context) -> Document:
    flavor_id = shown.server.flavor_id
    return {"id": flavor_id, "links": [{"rel": "bookmark", "href": ctx.bookmark(f"/flavors/{flavor_id}")}]}


def volumes_attached(shown: ShownServer, ctx: Context) -> list[Document]:
    return [{"id": volume.volume_id, "delete_on_termination": volume.delete_on_termination} for volume in shown.volumes]


def volume_ids(shown: ShownServer, ctx: Context) -> list[Document]:
    return [{"id": volume.volume_id} for volume in shown.volumes]


def security_groups(shown: ShownServer, ctx: Context) -> object:
    names = {name: None for interface in shown.server.nics for name in interface.security_groups}
    return [{"name": name} for name in names] or OMIT


def fault(shown: ShownServer, ctx: Context) -> object:
    """The server's fault: of its ERROR state or of its last failed action."""
    stored = shown.server.fault
    if stored is None:
        return OMIT
    found: Document = {"code": stored.code, "created": clock.iso(stored.created_at), "message": stored.message}
    if stored.details and ctx.may(ATTRIBUTES):
        found["details"] = stored.details
    return found


def progress(shown: ShownServer, ctx: Context) -> object:
    """The progress of a move in percent. For other work 0 until done: clients print each number in between."""
    if shown.status not in _WITH_PROGRESS:
        return OMIT
    if shown.task_state:
        return shown.progress if shown.status in _MOVES else 0
    return 0 if shown.status == "BUILD" else 100


def hints(server: Server) -> dict[str, list[object]]:
    """Every hint as a list, whether the request had a list or one value."""
    return {name: value if isinstance(value, list) else [value] for name, value in server.scheduler_hints.items()}


def _of(value: Callable[[Server], object], schema: Schema, policy: str | None = None) -> Field:
    """A field that depends on the server alone."""
    return Field(lambda shown, ctx: value(shown.server), schema, policy)


def _column(name: str, schema: Schema = NULLABLE, policy: str | None = None) -> Field:
    """A field that shows a column of the server unchanged."""
    value = attrgetter(f"server.{name}")
    return Field(lambda shown, ctx: value(shown), schema, policy)


FIELDS = {
    "id": _column("id", TEXT),
    "name": _column("name", TEXT),
    "status": attribute("status", TEXT),
    "tenant_id": _column("project_id", TEXT),
    "user_id": _column("user_id", TEXT),
    "metadata": _column("metadata", OBJECT),
    "hostId": _of(lambda server: host_id(server.project_id, server.host), TEXT),
    "image": Field(image),
    "flavor": Field(flavor, OBJECT),
    "created": _of(lambda server: clock.iso(server.created_at), TEXT),
    "updated": _of(lambda server: clock.iso(server.updated_at), TEXT),
    "addresses": Field(addresses, OBJECT),
    "accessIPv4": _of(lambda server: server.access_ip_v4 or "", TEXT),
    "accessIPv6": _of(lambda server: server.access_ip_v6 or "", TEXT),
    "links": Field(lambda shown, ctx: links(shown.server.id, ctx), LINKS),
    "OS-DCF:diskConfig": _column("disk_config", TEXT),
    "progress": Field(progress, {"type": "integer"}, optional=True),
    "OS-EXT-AZ:availability_zone": attribute("zone", TEXT),
    "config_drive": _of(lambda server: "True" if server.config_drive else "", TEXT),
    "key_name": _column("key_name"),
    "OS-SRV-USG:launched_at": _of(lambda server: server.launched_at and clock.iso_micro(server.launched_at), NULLABLE),
    "OS-SRV-USG:terminated_at": _of(
        lambda server: server.terminated_at and clock.iso_micro(server.terminated_at), NULLABLE
    ),
    "OS-EXT-SRV-ATTR:host": _column("host", policy=ATTRIBUTES),
    "OS-EXT-SRV-ATTR:instance_name": Field(
        lambda shown, ctx: instance_name(ctx.services.config.compute.instance_name_template, shown.server.id),
        TEXT,
        policy=ATTRIBUTES,
    ),
    "OS-EXT-SRV-ATTR:hypervisor_hostname": _column("hypervisor_hostname", policy=ATTRIBUTES),
    "OS-EXT-SRV-ATTR:reservation_id": _column("reservation_id", policy=ATTRIBUTES),
    "OS-EXT-SRV-ATTR:launch_index": _column("launch_index", {"type": "integer"}, ATTRIBUTES),
    "OS-EXT-SRV-ATTR:hostname": _column("hostname", TEXT),
    "OS-EXT-SRV-ATTR:kernel_id": _of(lambda server: server.image_properties.get("kernel_id", ""), NULLABLE, ATTRIBUTES),
    "OS-EXT-SRV-ATTR:ramdisk_id": _of(
        lambda server: server.image_properties.get("ramdisk_id", ""), NULLABLE, ATTRIBUTES
    ),
    "OS-EXT-SRV-ATTR:root_device_name": _column("root_device_name", policy=ATTRIBUTES),
    "OS-EXT-SRV-ATTR:user_data": _column("user_data", policy=ATTRIBUTES),
    "OS-EXT-STS:task_state": attribute("task_state", NULLABLE),
    "OS-EXT-STS:vm_state": _column("vm_state", TEXT),
    "OS-EXT-STS:power_state": _column("power_state", {"type": "integer"}),
    "os-extended-volumes:volumes_attached": Field(volumes_attached, {"type": "array"}),
    "host_status": attribute("host_status", TEXT, HOST_STATUS),
    "description": _column("description"),
    "locked": _column("locked", {"type": "boolean"}),
    "locked_reason": _column("locked_reason"),
    "tags": attribute("tags", LIST_OF_TEXT),
    "trusted_image_certificates": _column("trusted_certificates", {"type": ["array", "null"]}),
    "server_groups": attribute("server_groups", LIST_OF_TEXT),
    "pinned_availability_zone": _column("pinned_zone"),
    "scheduler_hints": _of(hints, OBJECT),
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
    "user_data": _column("user_data"),
    "adminPass": attribute("admin_pass", TEXT),
}
REBUILD_ALWAYS = UPDATE_ALWAYS | {"key_name", "user_data", "adminPass"}

api.view(View("server", FIELDS))
api.view(View("server detail", {name: field for name, field in FIELDS.items() if name != "server_groups"}))
api.view(View("server update", FIELDS))
api.view(View("server rebuild", REBUILD_FIELDS))
# Of servers as the database has them: `listing.BriefServer`.
api.view(
    View(
        "server brief",
        {
            "id": attribute("id", TEXT),
            "name": attribute("name", TEXT),
            "links": Field(lambda server, ctx: links(server.id, ctx), LINKS),
        },
    )
)
