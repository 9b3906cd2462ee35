"""Bodies and query keys of the host routes."""

from __future__ import annotations

from kilonova.http.pieces import STRING, Schema, closed

LIST: dict[str, Schema] = {"zone": STRING, "service": STRING}
_SWITCH: Schema = {"type": "string", "enum": ["enable", "disable"]}
UPDATE: Schema = {**closed({"status": _SWITCH, "maintenance_mode": _SWITCH}), "minProperties": 1}
