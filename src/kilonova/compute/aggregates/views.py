"""Views of aggregates. The response to a creation has no hosts and metadata."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.aggregates.model import ZONE
from kilonova.compute.api import api
from kilonova.http import Context, Field, View, col

TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}


def updated_at(row: Any, ctx: Context) -> str | None:
    return None if row["updated_at"] is None else clock.iso_micro(row["updated_at"])


NEW = {
    "availability_zone": Field(lambda row, ctx: row["metadata"].get(ZONE), NULLABLE),
    "created_at": Field(lambda row, ctx: clock.iso_micro(row["created_at"]), TEXT),
    # Deleted aggregates have no row.
    "deleted": Field(lambda row, ctx: False, {"type": "boolean"}),
    "deleted_at": Field(lambda row, ctx: None, {"type": "null"}),
    "id": col("id", {"type": "integer"}),
    "name": col("name", TEXT),
    "updated_at": Field(updated_at, NULLABLE),
    "uuid": col("uuid", {"type": "string", "format": "uuid"}),
}

api.view(View("new aggregate", NEW))
api.view(
    View(
        "aggregate",
        {
            **NEW,
            "hosts": col("hosts", {"type": "array", "items": TEXT}),
            "metadata": col("metadata", {"type": "object", "additionalProperties": TEXT}),
        },
    )
)
