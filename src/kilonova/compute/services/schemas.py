"""Bodies and query keys of the service routes."""

from __future__ import annotations

from kilonova.http.pieces import BOOLEAN, STRING, Schema, closed

HOST: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9-._]*$"}
REASON: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
LIST: dict[str, Schema] = {"host": STRING, "binary": STRING}
UPDATE = closed(
    {
        "status": {"type": "string", "enum": ["enabled", "disabled"]},
        "disabled_reason": REASON,
        "forced_down": BOOLEAN,
    }
)

# The four verbs of old versions share one body, of which each reads what it needs.
_NAMED: dict[str, Schema] = {
    "host": HOST,
    "binary": {"type": "string", "minLength": 1, "maxLength": 255},
    "disabled_reason": REASON,
    "forced_down": BOOLEAN,
}
NAMED = closed(_NAMED, ["host", "binary"])
NAMED_WITH_REASON = closed(_NAMED, ["host", "binary", "disabled_reason"])
NAMED_FORCED_DOWN = closed(_NAMED, ["host", "binary", "forced_down"])
