"""Bodies of the aggregate routes."""

from __future__ import annotations

from kilonova.http.parameter_types import NAME, UUID, Schema, closed_object, request_body

# Updates accept surrounding spaces, which are stripped.
NEW_NAME: Schema = {**NAME, "format": "name_with_spaces"}
# No colon: it separates the parts of zone:host:node.
ZONE: Schema = {**NAME, "type": ["string", "null"], "pattern": r"^[^:\x00-\x1f\x7f]*$"}
HOST: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9-._]*$"}
VALUE: Schema = {"type": ["string", "null"], "maxLength": 255}

CREATE = request_body("aggregate", {"name": NAME, "availability_zone": ZONE}, ["name"])
UPDATE = request_body("aggregate", {"name": NEW_NAME, "availability_zone": ZONE}, minProperties=1)
MEMBER = closed_object({"host": HOST}, ["host"])
METADATA: Schema = {
    "type": "object",
    "patternProperties": {r"^[a-zA-Z0-9-_:. ]{1,255}$": VALUE, "^availability_zone$": ZONE},
    "additionalProperties": False,
}
SET_METADATA = closed_object({"metadata": METADATA}, ["metadata"])
IMAGES = closed_object(
    {"cache": {"type": "array", "minItems": 1, "items": closed_object({"id": UUID}, ["id"])}}, ["cache"]
)
