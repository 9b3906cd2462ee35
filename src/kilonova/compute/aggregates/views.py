"""Views of aggregates. The response to a creation has no hosts and metadata."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.aggregates.model import ZONE, Aggregate
from kilonova.compute.api import api
from kilonova.http import Context, Field, View, attribute

TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}


def updated_at(aggregate: Aggregate, ctx: Context) -> str | None:
    return None if aggregate.updated_at is None else clock.iso_micro(aggregate.updated_at)


NEW = {
    "availability_zone": Field(lambda aggregate, ctx: aggregate.metadata.get(ZONE), NULLABLE),
    "created_at": Field(lambda aggregate, ctx: clock.iso_micro(aggregate.created_at), TEXT),
    # Deleted aggregates have no row.
    "deleted": Field(lambda aggregate, ctx: False, {"type": "boolean"}),
    "deleted_at": Field(lambda aggregate, ctx: None, {"type": "null"}),
    "id": attribute("id", {"type": "integer"}),
    "name": attribute("name", TEXT),
    "updated_at": Field(updated_at, NULLABLE),
    "uuid": attribute("uuid", {"type": "string", "format": "uuid"}),
}

api.view(View("new aggregate", NEW))
api.view(
    View(
        "aggregate",
        {
            **NEW,
            "hosts": attribute("hosts", {"type": "array", "items": TEXT}),
            "metadata": attribute("metadata", {"type": "object", "additionalProperties": TEXT}),
        },
    )
)
