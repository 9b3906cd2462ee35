"""Bodies and query keys of the service routes."""

from __future__ import annotations

from kilonova.http import repeatable
from kilonova.http.parameter_types import BOOLEAN, STRING, Schema, closed_object

HOST: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[a-zA-Z0-9-._]*$"}
REASON: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
LIST = repeatable({"host": STRING, "binary": STRING})
UPDATE = closed_object(
    {
        "status": {"type": "string", "enum": ["enabled", "disabled"]},
        "disabled_reason": REASON,
        "forced_down": BOOLEAN,
    }
)

# The four routes before 2.53 accept the same keys; each requires those that it uses.
_NAMED: dict[str, Schema] = {
    "host": HOST,
    "binary": {"type": "string", "minLength": 1, "maxLength": 255},
    "disabled_reason": REASON,
    "forced_down": BOOLEAN,
}
NAMED = closed_object(_NAMED, ["host", "binary"])
NAMED_WITH_REASON = closed_object(_NAMED, ["host", "binary", "disabled_reason"])
NAMED_FORCED_DOWN = closed_object(_NAMED, ["host", "binary", "forced_down"])
