"""JSON Schemas that several identity routes share."""

from __future__ import annotations

from kilonova.identity.api import Json

NAME: Json = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"\S"}
SHORT_NAME: Json = {**NAME, "maxLength": 64}
ID: Json = {"type": "string", "minLength": 1, "maxLength": 64}
ID_OR_NULL: Json = {**ID, "type": ["string", "null"]}
TEXT_OR_NULL: Json = {"type": ["string", "null"], "maxLength": 65535}
BOOLEAN: Json = {"type": "boolean"}
TAGS: Json = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^,/]+$"},
    "maxItems": 80,
    "uniqueItems": True,
}
OPTIONS: Json = {"type": "object", "maxProperties": 0}
QUERY_TEXT: Json = {"type": "string"}
QUERY_FLAG: Json = {"enum": ["", "0", "1", "true", "True", "false", "False"]}
PAGING: Json = {"limit": {"type": "string", "pattern": r"^[1-9]\d{0,8}$"}, "marker": QUERY_TEXT}


def body_of(noun: str, properties: Json, *required: str) -> Json:
    """`{noun: {…}}`. As in Keystone, undeclared attributes are accepted, stored and shown."""
    return {
        "type": "object",
        "properties": {
            noun: {"type": "object", "properties": properties, "required": list(required), "maxProperties": 64}
        },
        "required": [noun],
        "additionalProperties": False,
    }
