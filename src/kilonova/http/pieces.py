"""Pieces of JSON Schema that many bodies share, and what their values mean."""

from __future__ import annotations

import ipaddress
from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
# Bodies that say nothing, and were never looked at: clients send null as well as {}.
ANYTHING: Schema = {}
UUID: Schema = {"type": "string", "format": "uuid"}
# No control characters; spaces only inside.
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "format": "name", "pattern": r"^[^\x00-\x1f\x7f]*$"}
DESCRIPTION: Schema = {"type": ["string", "null"], "maxLength": 255, "pattern": r"^[^\x00-\x08\x0b-\x1f\x7f]*$"}
BOOLEAN: Schema = {
    "type": ["boolean", "string"],
    "enum": [
        *(True, "True", "TRUE", "true", "1", "ON", "On", "on", "YES", "Yes", "yes", "t", "T", "y", "Y"),
        *(False, "False", "FALSE", "false", "0", "OFF", "Off", "off", "NO", "No", "no", "f", "F", "n", "N"),
    ],
}
METADATA: Schema = {
    "type": "object",
    "patternProperties": {r"^[a-zA-Z0-9-_:. ]{1,255}$": {"type": "string", "maxLength": 255}},
    "additionalProperties": False,
}
DATE_TIME: Schema = {"type": "string", "format": "date-time"}


def is_true(value: Any) -> bool:
    """What a BOOLEAN means."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "1", "on", "yes", "t", "y"))


def address(text: str | None) -> str | None:
    """An IP address in its shortest form; empty is none."""
    return str(ipaddress.ip_address(text)) if text else None


def integer(minimum: int, maximum: int = 0x7FFFFFFF) -> Schema:
    """A whole number, also written as text, as the API has always allowed; `int` reads both."""
    digits = "^0*[1-9][0-9]{0,8}$" if minimum else "^[0-9]{1,9}$"
    return {
        "anyOf": [
            {"type": "integer", "minimum": minimum, "maximum": maximum},
            {"type": "string", "pattern": digits},
        ]
    }


def closed(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
        **more,
    }
