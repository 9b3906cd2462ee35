"""Bodies and query keys of the server routes, in their newest form."""

from __future__ import annotations

from kilonova.compute.block_devices.schemas import DEVICES, OLD_DEVICES
from kilonova.compute.server_tags.schemas import TAGS
from kilonova.compute.servers import certificates
from kilonova.http import multi
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.pieces import (
    BOOLEAN,
    DATE_TIME,
    DESCRIPTION,
    METADATA,
    NAME,
    STRING,
    UUID,
    Schema,
    closed,
    integer,
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
# Old clients give the image's address, which ends with its id.
IMAGE_REF: Schema = {"anyOf": [UUID, {"type": "string", "maxLength": 255, "pattern": "/[0-9a-fA-F-]{36}/?$"}]}
DISK_CONFIG: Schema = {"type": "string", "enum": ["AUTO", "MANUAL"]}
NETWORK_KEYS: Schema = {
    "uuid": UUID,
    "port": {"type": ["string", "null"], "format": "uuid"},
    "fixed_ip": {"type": "string", "format": "ip"},
}


def network_list(**more: Schema) -> Schema:
    return {"type": "array", "items": closed({**NETWORK_KEYS, **more})}


def networks(**more: Schema) -> Schema:
    """From 2.37: a list, or one of two words."""
    return {"oneOf": [network_list(**more), {"type": "string", "enum": ["none", "auto"]}]}


ONE_UUID: Schema = {"type": "array", "items": UUID, "minItems": 1, "maxItems": 1}
UUIDS: Schema = {"oneOf": [UUID, {"type": "array", "items": UUID}]}
# Open: a filter of one's own may read hints of its own.
HINTS: Schema = {
    "type": "object",
    "properties": {
        "group": {"oneOf": [UUID, ONE_UUID]},
        "same_host": UUIDS,
        "different_host": UUIDS,
        "query": {"type": ["string", "object"]},
        "target_cell": NAME,
        "different_cell": {"oneOf": [STRING, {"type": "array", "items": STRING}]},
        "build_near_host_ip": {"type": "string", "format": "ip"},
        "cidr": {"type": "string", "pattern": "^/[0-9a-f.:]+$"},
    },
    "additionalProperties": True,
}

CREATE: Schema = closed(
    {
        "server": closed(
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
                    "items": closed({"name": {"type": "string", "minLength": 1, "maxLength": 255}}),
                },
                "metadata": METADATA,
                "tags": TAGS,
                "user_data": USER_DATA,
                "availability_zone": NAME,
                "host": HOST,
                "hypervisor_hostname": HOST,
                "hypervisor_uuid": UUID,
                "block_device_mapping": OLD_DEVICES,
                "block_device_mapping_v2": DEVICES,
                "trusted_image_certificates": certificates.SCHEMA,
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

UPDATE: Schema = closed(
    {
        "server": closed(
            {
                "name": NAME,
                "description": DESCRIPTION,
                "hostname": HOSTNAME,
                "accessIPv4": {"oneOf": [ACCESS_V4, {"const": ""}, {"type": "null"}]},
                "accessIPv6": {"oneOf": [ACCESS_V6, {"const": ""}, {"type": "null"}]},
                "OS-DCF:diskConfig": DISK_CONFIG,
                "pinned_availability_zone": {**NAME, "type": ["string", "null"]},
            }
        )
    },
    ["server"],
)

REBOOT: Schema = closed(
    {"type": {"type": "string", "enum": ["HARD", "Hard", "hard", "SOFT", "Soft", "soft"]}}, ["type"]
)

# null: where it was. An object that says nothing is a mistake, and refused.
UNSHELVE: Schema = closed(
    {"availability_zone": {**NAME, "type": ["string", "null"]}, "host": HOST},
    type=["object", "null"],
    minProperties=1,
)

# What members may filter by, at first and by the name of the behaviour that opened it; admins filter by all.
OPEN_FILTERS = frozenset(
    {
        *("name", "status", "image", "flavor", "ip", "reservation_id", "changes-since", "changes-before", "locked"),
        *("all_tenants", "limit", "marker", "sort_key", "sort_dir", "tags", "tags-any", "not-tags", "not-tags-any"),
    }
)
OPENED_FILTERS = {
    "everybody filters servers by ip6": {"ip6"},
    "everybody filters servers by their states and times": {
        *("availability_zone", "config_drive", "key_name", "created_at", "launched_at", "terminated_at"),
        *("power_state", "task_state", "vm_state", "progress", "user_id"),
    },
    "everybody filters servers by hostname": {"hostname"},
}

_PLAIN_FILTERS = (
    *("name", "host", "node", "hostname", "uuid", "image", "flavor", "ip", "ip6", "reservation_id"),
    *("project_id", "tenant_id", "user_id", "key_name", "availability_zone", "vm_state", "task_state"),
    *("power_state", "config_drive", "locked", "description", "launch_index", "progress", "display_name"),
    *("display_description", "image_ref", "access_ip_v4", "access_ip_v6", "root_device_name"),
    *("tags", "tags-any", "not-tags", "not-tags-any"),
)

LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "sort_key": multi(STRING),
    "sort_dir": multi({"type": "string", "enum": ["asc", "desc"]}),
    "all_tenants": STRING,
    "changes-since": DATE_TIME,
    "changes-before": DATE_TIME,
    **dict.fromkeys(("created_at", "launched_at", "terminated_at"), DATE_TIME),
    "deleted": STRING,
    "status": multi(STRING),
    **dict.fromkeys(_PLAIN_FILTERS, STRING),
}
