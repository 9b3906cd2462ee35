"""Views of migrations. Rows come from `queries`, with the details that it adds."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.migrations import status
from kilonova.compute.migrations.model import LIVE
from kilonova.compute.servers.views import LINKS, NULLABLE, TEXT
from kilonova.http import Context, Field, View, col
from kilonova.http.views import OMIT

NUMBER = {"type": "integer"}
NULLABLE_NUMBER = {"type": ["integer", "null"]}


def links(row: Any, ctx: Context) -> Any:
    """Only running live migrations can be shown there."""
    if row["type"] != LIVE or not status.in_progress(row):
        return OMIT
    return ctx.links(f"/servers/{row['server_id']}/migrations/{row['id']}")


def _time(name: str) -> Field:
    return Field(lambda row, ctx: clock.iso_micro(row[name]), TEXT)


def _transferred(kind: str, part: str) -> Field:
    """Null until the host has reported the amounts."""

    def value(row: Any, ctx: Context) -> int | None:
        transfer = row["transfer"]
        if transfer is None:
            return None
        total: int = transfer.get(f"{kind}_total", 0)
        processed: int = transfer.get(f"{kind}_processed", 0)
        return {"total": total, "processed": processed, "remaining": max(total - processed, 0)}[part]

    return Field(value, NULLABLE_NUMBER)


COMMON = {
    "id": col("id", NUMBER),
    "uuid": col("operation_id", TEXT),
    "status": Field(lambda row, ctx: status.status(row), TEXT),
    "source_compute": col("source_host", NULLABLE),
    "source_node": col("source_node", NULLABLE),
    "dest_compute": col("dest_host", NULLABLE),
    "dest_host": col("dest_address", NULLABLE),
    "dest_node": col("dest_node", NULLABLE),
    "user_id": col("user_id", TEXT),
    "project_id": col("project_id", TEXT),
    "created_at": _time("created_at"),
    "updated_at": _time("changed_at"),
}

api.view(
    View(
        "migration",
        {
            **COMMON,
            "instance_uuid": col("server_id", TEXT),
            "migration_type": col("type", TEXT),
            "old_instance_type_id": col("old_flavor_number", NULLABLE_NUMBER),
            "new_instance_type_id": col("new_flavor_number", NULLABLE_NUMBER),
            "links": Field(links, LINKS, optional=True),
            "reason": Field(lambda row, ctx: status.reason(row), NULLABLE),
        },
    )
)
api.view(
    View(
        "server migration",
        {
            **COMMON,
            "server_uuid": col("server_id", TEXT),
            **{
                f"{kind}_{part}_bytes": _transferred(kind, part)
                for kind in ("memory", "disk")
                for part in ("total", "processed", "remaining")
            },
        },
    )
)
