"""JSON Schema types that many request bodies share, and the conversion of their values."""

from __future__ import annotations

import ipaddress
from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
# For bodies without content, which were never validated: clients send null as well as {}.
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


def is_true(value: object) -> bool:
    """The truth value of a BOOLEAN."""
    return value is True or (isinstance(value, str) and value.lower() in ("true", "1", "on", "yes", "t", "y"))


def normalize_address(text: str | None) -> str | None:
    """An IP address in its canonical form; None for an empty one."""
    return str(ipaddress.ip_address(text)) if text else None


def integer(minimum: int, maximum: int = 0x7FFFFFFF) -> Schema:
    """An integer, also as a string, which the API has always accepted. `int` converts both."""
    digits = "^0*[1-9][0-9]{0,8}$" if minimum else "^[0-9]{1,9}$"
    return {
        "anyOf": [
            {"type": "integer", "minimum": minimum, "maximum": maximum},
            {"type": "string", "pattern": digits},
        ]
    }


def closed_object(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
        **more,
    }


def request_body(name: str, properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """A body with one key, such as `{"server": {…}}`. The arguments are those of the closed object under the key."""
    return closed_object({name: closed_object(properties, required, **more)}, [name])
