"""Bodies of servers' tags."""

from __future__ import annotations

from kilonova.compute.server_tags.model import MOST
from kilonova.http.pieces import Schema, closed

TAG: Schema = {"type": "string", "minLength": 1, "maxLength": 60, "pattern": "^[^,/]*$"}
TAGS: Schema = {"type": "array", "items": TAG, "maxItems": MOST, "uniqueItems": True}
REPLACE: Schema = closed({"tags": TAGS}, ["tags"])
