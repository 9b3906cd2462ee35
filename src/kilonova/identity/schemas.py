"""JSON Schemas that several identity routes share."""

from __future__ import annotations

from kilonova.identity.api import Json

NAME: Json = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"\S"}
SHORT_NAME: Json = {**NAME, "maxLength": 64}
ID: Json = {"type": "string", "minLength": 1, "maxLength": 64}
ID_OR_NULL: Json = {**ID, "type": ["string", "null"]}
# Regions have names as their ids.
REGION_ID_OR_NULL: Json = {**ID_OR_NULL, "maxLength": 255}
TEXT_OR_NULL: Json = {"type": ["string", "null"], "maxLength": 65535}
SHORT_TEXT_OR_NULL: Json = {"type": ["string", "null"], "maxLength": 255}
BOOLEAN: Json = {"type": "boolean"}
COUNT_OR_NULL: Json = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**31 - 1}
# Roles that a body names by id or name.
ROLE_REFERENCES: Json = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"id": ID, "name": NAME},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    },
    "maxItems": 64,
}
TAGS: Json = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^,/]+$"},
    "maxItems": 80,
    "uniqueItems": True,
}
# Null removes an option.
_OPTION: Json = {"type": ["boolean", "null"]}
# The options of projects, domains and roles.
OPTIONS: Json = {"type": "object", "properties": {"immutable": _OPTION}, "additionalProperties": False}
USER_OPTIONS: Json = {
    "type": "object",
    "properties": {
        "lock_password": _OPTION,
        # Passwords do not expire and users are not locked out, so the options to ignore this change nothing.
        "ignore_change_password_upon_first_use": _OPTION,
        "ignore_password_expiry": _OPTION,
        "ignore_lockout_failure_attempts": _OPTION,
        "ignore_user_inactivity": _OPTION,
        # Several methods together are not enforced, so they cannot be required.
        "multi_factor_auth_enabled": {"enum": [False, None]},
        "multi_factor_auth_rules": {"type": ["array", "null"], "maxItems": 0},
    },
    "additionalProperties": False,
}
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
