"""Views of snapshots. Rows need their metadata (`model.add_metadata`)."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Field, View, col
from kilonova.store import Row
from kilonova.volume.api import api

EXTENDED = "volume_extension:extended_snapshot_attributes"
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}


def _updated(row: Row, ctx: Context) -> str | None:
    """None if the snapshot was never updated."""
    return clock.iso_micro(row["updated_at"]) if row["updated_at"] != row["created_at"] else None


def _progress(row: Row, ctx: Context) -> str:
    return f"{row['progress'] or 0}%"


BRIEF = {
    "id": col("id", TEXT),
    "name": col("name", NULLABLE),
    "description": col("description", NULLABLE),
    "status": col("status", TEXT),
    "size": col("size", {"type": "integer"}),
    "volume_id": col("volume_id", TEXT),
    "created_at": Field(lambda row, ctx: clock.iso_micro(row["created_at"]), TEXT),
    "updated_at": Field(_updated, NULLABLE),
    "metadata": col("metadata", {"type": "object"}),
}
api.view(View("snapshot brief", BRIEF))
api.view(
    View(
        "snapshot",
        {
            **BRIEF,
            "os-extended-snapshot-attributes:progress": Field(_progress, TEXT, EXTENDED),
            "os-extended-snapshot-attributes:project_id": col("project_id", TEXT, EXTENDED),
            # Groups are not supported.
            "group_snapshot_id": Field(lambda row, ctx: None, {"type": "null"}),
            "user_id": col("user_id", TEXT),
            "consumes_quota": Field(lambda row, ctx: True, {"type": "boolean"}),
        },
    )
)
