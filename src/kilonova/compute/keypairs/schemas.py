"""Bodies and query keys of the key pair routes."""

from __future__ import annotations

from kilonova.http import repeatable
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.parameter_types import STRING, Schema, request_body


def name(characters: str) -> Schema:
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "format": "name",
        "pattern": f"^[{characters}]+$",
    }


NAME = name(r"a-zA-Z0-9 _\-@.")
OLD_NAME = name(r"a-zA-Z0-9 _\-")
PUBLIC_KEY: Schema = {"type": "string", "minLength": 1, "maxLength": 16384}
CREATE = request_body(
    "keypair",
    {
        "name": NAME,
        "type": {"type": "string", "enum": ["ssh", "x509"]},
        "public_key": PUBLIC_KEY,
        "user_id": STRING,
    },
    ["name", "public_key"],
)
OF_USER = repeatable({"user_id": STRING})
LIST = repeatable({"limit": LIMIT, "marker": MARKER, **OF_USER})
