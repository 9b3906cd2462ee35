"""Bodies and query keys of the quota and limit routes."""

from __future__ import annotations

from kilonova.http.api import multi
from kilonova.http.pieces import BOOLEAN, STRING, Schema, closed

LIMIT: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": -1, "maximum": 0x7FFFFFFF},
        {"type": "string", "pattern": "^(-1|[0-9]{1,9})$"},
    ]
}
# Types have limits of their own, so the keys are known only to the database. Old clients repeat the project's id.
_LIMITS: Schema = {
    "type": "object",
    "properties": {"tenant_id": STRING},
    "additionalProperties": LIMIT,
    "maxProperties": 1000,
}
NOT_LIMITS = frozenset({"tenant_id"})

UPDATE = closed({"quota_set": _LIMITS}, ["quota_set"])
UPDATE_CLASS = closed({"quota_class_set": _LIMITS}, ["quota_class_set"])
SHOW: dict[str, Schema] = {"usage": BOOLEAN, "*": multi(STRING)}
CHANGE: dict[str, Schema] = {"skip_validation": BOOLEAN, "*": multi(STRING)}
LIMITS: dict[str, Schema] = {"project_id": STRING, "*": multi(STRING)}
