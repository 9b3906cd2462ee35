"""Bodies of servers' metadata."""

from __future__ import annotations

from kilonova.http.pieces import METADATA, Schema, closed

ALL: Schema = closed({"metadata": METADATA}, ["metadata"])
ITEM: Schema = closed({"meta": {**METADATA, "minProperties": 1, "maxProperties": 1}}, ["meta"])
