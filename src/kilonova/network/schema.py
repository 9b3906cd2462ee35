"""Pieces that the request schemas of all network resources are made of."""

from __future__ import annotations

from typing import Any

from kilonova.http import multi

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "maxLength": 255}
UUID: Schema = {"type": "string", "format": "uuid"}
UUID_OR_NULL: Schema = {"type": ["string", "null"], "format": "uuid"}
PROJECT: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
# Clients of old spell booleans in many ways.
BOOLEAN: Schema = {"enum": [True, False, "true", "True", "TRUE", "false", "False", "FALSE", "1", "0", 1, 0]}
IP: Schema = {"type": "string", "format": "ip"}
IP_OR_NULL: Schema = {"type": ["string", "null"], "format": "ip"}
CIDR: Schema = {"type": "string", "format": "cidr"}
MAC: Schema = {"type": "string", "pattern": "^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$"}
ZONES: Schema = {"type": "array", "items": TEXT, "maxItems": 16}

# What every resource takes when it is created.
STANDARD: Schema = {"project_id": PROJECT, "tenant_id": PROJECT, "description": {"type": ["string", "null"]}}

_TEXT_VALUES = multi({"type": "string"})
LIST_KEYS: dict[str, Schema] = {
    "fields": _TEXT_VALUES,
    "sort_key": _TEXT_VALUES,
    "sort_dir": multi({"enum": ["asc", "desc"]}),
    "limit": {"type": "string", "pattern": "^[0-9]{1,9}$"},
    "marker": {"type": "string"},
    "page_reverse": {"type": "string"},
}
SHOW_KEYS: dict[str, Schema] = {"fields": _TEXT_VALUES}


def resource(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    closed: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**closed, "required": list(required)} if required else closed


def create(singular: str, plural: str, properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    """One resource, or several at once under the plural."""
    one = resource({**STANDARD, **properties}, required)
    return {
        "type": "object",
        "properties": {singular: one, plural: {"type": "array", "items": one, "minItems": 1}},
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }


def update(singular: str, properties: Schema) -> Schema:
    one = resource({"description": STANDARD["description"], **properties})
    return {
        "type": "object",
        "properties": {singular: one},
        "required": [singular],
        "additionalProperties": False,
    }


def truth(value: Any) -> bool:
    """A value that passed BOOLEAN."""
    return value.lower() in ("true", "1") if isinstance(value, str) else bool(value)
