"""Schemas of request bodies and queries of the server routes, in the newest microversion."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.block_devices.schemas import DEVICES, OLD_DEVICES
from kilonova.compute.server_tags.model import TAGS_SCHEMA
from kilonova.compute.servers import trusted_certificates
from kilonova.http import multi, repeatable
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.parameter_types import (
    BOOLEAN,
    DATE_TIME,
    DESCRIPTION,
    METADATA,
    NAME,
    STRING,
    UUID,
    Schema,
    closed_object,
    integer,
    request_body,
)

HOSTNAME: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*\.?$",
}
HOST_LABEL: Schema = {**HOSTNAME, "maxLength": 63, "pattern": r"^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$"}
HOST: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9-._]*$"}
DEVICE_TAG: Schema = {"type": "string", "minLength": 1, "maxLength": 60, "pattern": "^[^,/]*$"}
ACCESS_V4: Schema = {"type": "string", "format": "ipv4"}
ACCESS_V6: Schema = {"type": "string", "format": "ipv6"}
FLAVOR_REF: Schema = {"type": ["string", "integer"], "minLength": 1, "maxLength": 255, "minimum": 0}
USER_DATA: Schema = {"type": ["string", "null"], "format": "base64", "maxLength": 65535}
# Old clients give the image's URL, which ends with its id.
IMAGE_REF: Schema = {"anyOf": [UUID, {"type": "string", "maxLength": 255, "pattern": "/[0-9a-fA-F-]{36}/?$"}]}
DISK_CONFIG: Schema = {"type": "string", "enum": ["AUTO", "MANUAL"]}
NETWORK_KEYS: Schema = {
    "uuid": UUID,
    "port": {"type": ["string", "null"], "format": "uuid"},
    "fixed_ip": {"type": "string", "format": "ip"},
}


def network_list(**more: Schema) -> Schema:
    return {"type": "array", "items": closed_object({**NETWORK_KEYS, **more})}


def networks(**more: Schema) -> Schema:
    """From 2.37: a list, `auto` or `none`."""
    return {"oneOf": [network_list(**more), {"type": "string", "enum": ["none", "auto"]}]}


ONE_UUID: Schema = {"type": "array", "items": UUID, "minItems": 1, "maxItems": 1}
UUIDS: Schema = {"oneOf": [UUID, {"type": "array", "items": UUID}]}
# Open, because operators' own filters may read other hints.
HINTS: Schema = {
    "type": "object",
    "properties": {
        "group": {"oneOf": [UUID, ONE_UUID]},
        "same_host": {"oneOf": [STRING, {"type": "array", "items": UUID}]},
        "different_host": UUIDS,
        "query": {"type": ["string", "object"]},
        "target_cell": NAME,
        "different_cell": {"oneOf": [STRING, {"type": "array", "items": STRING}]},
        "build_near_host_ip": {"type": "string", "format": "ip"},
        "cidr": {"type": "string", "pattern": "^/[0-9a-f.:]+$"},
    },
    "additionalProperties": True,
}

CREATE: Schema = closed_object(
    {
        "server": closed_object(
            {
                "name": NAME,
                "description": DESCRIPTION,
                "hostname": HOSTNAME,
                "imageRef": {"type": "string", "maxLength": 255},
                "flavorRef": FLAVOR_REF,
                "key_name": NAME,
                "networks": networks(tag=DEVICE_TAG),
                "security_groups": {
                    "type": "array",
                    "items": closed_object({"name": {"type": "string", "minLength": 1, "maxLength": 255}}),
                },
                "metadata": METADATA,
                "tags": TAGS_SCHEMA,
                "user_data": USER_DATA,
                "availability_zone": NAME,
                "host": HOST,
                "hypervisor_hostname": HOST,
                "hypervisor_uuid": UUID,
                "block_device_mapping": OLD_DEVICES,
                "block_device_mapping_v2": DEVICES,
                "trusted_image_certificates": trusted_certificates.SCHEMA,
                "config_drive": BOOLEAN,
                "adminPass": STRING,
                "accessIPv4": ACCESS_V4,
                "accessIPv6": ACCESS_V6,
                "OS-DCF:diskConfig": DISK_CONFIG,
                "min_count": integer(1),
                "max_count": integer(1),
                "return_reservation_id": BOOLEAN,
            },
            ["name", "flavorRef", "networks"],
        ),
        "os:scheduler_hints": HINTS,
        "OS-SCH-HNT:scheduler_hints": HINTS,
    },
    ["server"],
)

UPDATE: Schema = request_body(
    "server",
    {
        "name": NAME,
        "description": DESCRIPTION,
        "hostname": HOSTNAME,
        "accessIPv4": {"oneOf": [ACCESS_V4, {"const": ""}, {"type": "null"}]},
        "accessIPv6": {"oneOf": [ACCESS_V6, {"const": ""}, {"type": "null"}]},
        "OS-DCF:diskConfig": DISK_CONFIG,
        "pinned_availability_zone": {**NAME, "type": ["string", "null"]},
    },
)

REBOOT: Schema = closed_object(
    {"type": {"type": "string", "enum": ["HARD", "Hard", "hard", "SOFT", "Soft", "soft"]}}, ["type"]
)

# null: anywhere. An empty object is refused.
UNSHELVE: Schema = closed_object(
    {"availability_zone": {**NAME, "type": ["string", "null"]}, "host": HOST},
    type=["object", "null"],
    minProperties=1,
)

ALL_FILTERS = "os_compute_api:servers:allow_all_filters"
# Filters that members may use, and those that a later behaviour added. Administrators may use all.
OPEN_FILTERS = frozenset(
    {
        *("name", "status", "image", "flavor", "ip", "reservation_id", "changes-since", "changes-before", "locked"),
        *("all_tenants", "limit", "marker", "sort_key", "sort_dir", "tags", "tags-any", "not-tags", "not-tags-any"),
    }
)
FILTER_BY_IP6 = api.behaviour("everybody filters servers by ip6")
FILTER_BY_STATES = api.behaviour("everybody filters servers by their states and times")
FILTER_BY_HOSTNAME = api.behaviour("everybody filters servers by hostname")
OPENED_FILTERS = {
    FILTER_BY_IP6: {"ip6"},
    FILTER_BY_STATES: {
        *("availability_zone", "config_drive", "key_name", "created_at", "launched_at", "terminated_at"),
        *("power_state", "task_state", "vm_state", "progress", "user_id"),
    },
    FILTER_BY_HOSTNAME: {"hostname"},
}

_PLAIN_FILTERS = (
    *("name", "host", "node", "hostname", "uuid", "image", "flavor", "ip", "ip6", "reservation_id"),
    *("project_id", "tenant_id", "user_id", "key_name", "availability_zone", "vm_state", "task_state"),
    *("power_state", "config_drive", "locked", "description", "launch_index", "progress", "display_name"),
    *("display_description", "image_ref", "access_ip_v4", "access_ip_v6", "root_device_name"),
    *("tags", "tags-any", "not-tags", "not-tags-any", "deleted", "soft_deleted", "kernel_id", "ramdisk_id"),
    *("auto_disk_config", "locked_by"),
)
# Accepted without effect: they name related tables of Nova's database.
_IGNORED_FILTERS = (
    *("block_device_mapping", "info_cache", "metadata", "pci_devices", "security_groups", "services"),
    "system_metadata",
)

LIST: dict[str, Schema] = {
    **repeatable({"limit": LIMIT, "marker": MARKER, "all_tenants": STRING}),
    "sort_key": multi(STRING),
    "sort_dir": multi({"type": "string", "enum": ["asc", "desc"]}),
    **repeatable(dict.fromkeys(("changes-since", "changes-before"), DATE_TIME)),
    **repeatable(dict.fromkeys(("created_at", "launched_at", "terminated_at"), DATE_TIME)),
    "status": multi(STRING),
    **repeatable(dict.fromkeys((*_PLAIN_FILTERS, *_IGNORED_FILTERS), STRING)),
}
