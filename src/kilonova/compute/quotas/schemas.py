"""Bodies and query keys of the quota routes."""

from __future__ import annotations

from kilonova.compute.quotas.model import NETWORK_RESOURCES, RESOURCES
from kilonova.http.pieces import BOOLEAN, STRING, Schema, closed

LIMIT: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": -1, "maximum": 0x7FFFFFFF},
        {"type": "string", "pattern": "^(-1|[0-9]{1,9})$"},
    ]
}
OLD_RESOURCES = tuple(resource for resource in RESOURCES if resource.startswith("injected_"))
LASTING = tuple(resource for resource in RESOURCES if resource not in OLD_RESOURCES)
_LIMITS = dict.fromkeys(LASTING, LIMIT)

UPDATE = closed({"quota_set": closed({**_LIMITS, "force": BOOLEAN})}, ["quota_set"])
UPDATE_CLASS = closed({"quota_class_set": closed(_LIMITS)}, ["quota_class_set"])
OF_USER: dict[str, Schema] = {"user_id": STRING}

__all__ = ["LASTING", "LIMIT", "NETWORK_RESOURCES", "OF_USER", "OLD_RESOURCES", "UPDATE", "UPDATE_CLASS"]
