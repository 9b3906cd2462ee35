"""Bodies and queries of the old ways to images."""

from __future__ import annotations

from kilonova.http import multi
from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.pieces import DATE_TIME, METADATA, STRING, Schema, closed

WHOLE: Schema = {"type": "string", "pattern": "^[0-9]{1,9}$"}
LIST: dict[str, Schema] = {
    "limit": LIMIT,
    "marker": MARKER,
    "changes-since": DATE_TIME,
    "minDisk": WHOLE,
    "minRam": WHOLE,
    **dict.fromkeys(("name", "status", "server", "type"), STRING),
    # Of what else there is only `property-…` is heard.
    "*": multi(STRING),
}
METADATA_OF_IMAGE: Schema = closed({"metadata": METADATA}, ["metadata"])
ITEM: Schema = closed({"meta": {**METADATA, "minProperties": 1, "maxProperties": 1}}, ["meta"])
