"""Bodies and query keys of the quota routes."""

from __future__ import annotations

from kilonova.compute.quotas.model import RESOURCES
from kilonova.compute.quotas.source import NETWORK_RESOURCES
from kilonova.http import repeatable
from kilonova.http.parameter_types import BOOLEAN, STRING, Schema, request_body

LIMIT: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": -1, "maximum": 0x7FFFFFFF},
        {"type": "string", "pattern": "^(-1|[0-9]{1,9})$"},
    ]
}
OLD_RESOURCES = tuple(resource for resource in RESOURCES if resource.startswith("injected_"))
CURRENT_RESOURCES = tuple(resource for resource in RESOURCES if resource not in OLD_RESOURCES)
_LIMITS = dict.fromkeys(CURRENT_RESOURCES, LIMIT)

UPDATE = request_body("quota_set", {**_LIMITS, "force": BOOLEAN})
UPDATE_CLASS = request_body("quota_class_set", _LIMITS)
OF_USER = repeatable({"user_id": STRING})

__all__ = ["CURRENT_RESOURCES", "LIMIT", "NETWORK_RESOURCES", "OF_USER", "OLD_RESOURCES", "UPDATE", "UPDATE_CLASS"]
