"""Bodies of the aggregate routes."""

from __future__ import annotations

from kilonova.http.pieces import NAME, UUID, Schema, closed

# Around a new name old clients leave spaces, which are cut off.
NEW_NAME: Schema = {**NAME, "format": "name_with_spaces"}
# A colon would part the zone from a host in the form zone:host:node.
ZONE: Schema = {**NAME, "type": ["string", "null"], "pattern": r"^[^:\x00-\x1f\x7f]*$"}
HOST: Schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9-._]*$"}
VALUE: Schema = {"type": ["string", "null"], "maxLength": 255}

CREATE = closed({"aggregate": closed({"name": NAME, "availability_zone": ZONE}, ["name"])}, ["aggregate"])
UPDATE = closed({"aggregate": closed({"name": NEW_NAME, "availability_zone": ZONE}, minProperties=1)}, ["aggregate"])
MEMBER = closed({"host": HOST}, ["host"])
METADATA: Schema = {
    "type": "object",
    "patternProperties": {r"^[a-zA-Z0-9-_:. ]{1,255}$": VALUE, "^availability_zone$": ZONE},
    "additionalProperties": False,
}
SET_METADATA = closed({"metadata": METADATA}, ["metadata"])
IMAGES = closed({"cache": {"type": "array", "minItems": 1, "items": closed({"id": UUID}, ["id"])}}, ["cache"])
