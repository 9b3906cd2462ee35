"""JSON Schemas that the requests of all network resources share."""

from __future__ import annotations

from kilonova.http import multi
from kilonova.http.schema import Schema

TEXT: Schema = {"type": "string", "maxLength": 255}
UUID: Schema = {"type": "string", "format": "uuid"}
UUID_OR_NULL: Schema = {"type": ["string", "null"], "format": "uuid"}
PROJECT: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
# Old clients send booleans in many spellings.
BOOLEAN: Schema = {"enum": [True, False, "true", "True", "TRUE", "false", "False", "FALSE", "1", "0", 1, 0]}
IP: Schema = {"type": "string", "format": "ip"}
IP_OR_NULL: Schema = {"type": ["string", "null"], "format": "ip"}
CIDR: Schema = {"type": "string", "format": "cidr"}
MAC: Schema = {"type": "string", "pattern": "^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$"}
ZONE_HINTS: Schema = {"type": "array", "items": TEXT, "maxItems": 16}

STANDARD_ATTRIBUTES: Schema = {"project_id": PROJECT, "tenant_id": PROJECT, "description": {"type": ["string", "null"]}}

_TEXT_VALUES = multi({"type": "string"})
LIST_QUERY: dict[str, Schema] = {
    "fields": _TEXT_VALUES,
    "sort_key": _TEXT_VALUES,
    "sort_dir": multi({"enum": ["asc", "desc"]}),
    "limit": {"type": "string", "pattern": "^[0-9]{1,9}$"},
    "marker": {"type": "string"},
    "page_reverse": {"type": "string"},
}
SHOW_QUERY: dict[str, Schema] = {"fields": _TEXT_VALUES}


def object_schema(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def create_body(singular: str, plural: str, properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    """The body that creates one resource, or several under the plural."""
    one = object_schema({**STANDARD_ATTRIBUTES, **properties}, required)
    return {
        "type": "object",
        "properties": {singular: one, plural: {"type": "array", "items": one, "minItems": 1}},
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }


def update_body(singular: str, properties: Schema) -> Schema:
    one = object_schema({"description": STANDARD_ATTRIBUTES["description"], **properties})
    return {
        "type": "object",
        "properties": {singular: one},
        "required": [singular],
        "additionalProperties": False,
    }


def to_bool(value: object) -> bool:
    """Convert a value that the schema BOOLEAN accepts."""
    return value.lower() in ("true", "1") if isinstance(value, str) else bool(value)
