"""Building blocks of the JSON schemas of the Placement API."""

from __future__ import annotations

from kilonova.http.schema import Schema

UUID: Schema = {"type": "string", "format": "uuid"}
GENERATION: Schema = {"type": "integer"}


def strict_object(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    """An object with only these properties; all are required unless `required` is given."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def keyed_object(pattern: str, member: Schema, at_least: int = 0) -> Schema:
    """An object whose keys match the pattern."""
    return {
        "type": "object",
        "minProperties": at_least,
        "additionalProperties": False,
        "patternProperties": {pattern: member},
    }
