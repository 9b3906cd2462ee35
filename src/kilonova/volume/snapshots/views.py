"""Views of snapshots. They show `ShownSnapshot`."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Field, View, attribute
from kilonova.http.schema import Schema
from kilonova.volume.api import api
from kilonova.volume.snapshots.model import ShownSnapshot

EXTENDED = "volume_extension:extended_snapshot_attributes"
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}


def _of_snapshot(name: str, schema: Schema, policy: str | None = None) -> Field:
    """A field that shows an attribute of the snapshot unchanged."""
    return Field(lambda shown, ctx: getattr(shown.snapshot, name), schema, policy)


def _created(shown: ShownSnapshot, ctx: Context) -> str:
    return clock.iso_micro(shown.snapshot.created_at)


def _updated(shown: ShownSnapshot, ctx: Context) -> str | None:
    """None if the snapshot was never updated."""
    snapshot = shown.snapshot
    return clock.iso_micro(snapshot.updated_at) if snapshot.updated_at != snapshot.created_at else None


def _progress(shown: ShownSnapshot, ctx: Context) -> str:
    return f"{shown.snapshot.progress or 0}%"


BRIEF = {
    "id": _of_snapshot("id", TEXT),
    "name": _of_snapshot("name", NULLABLE),
    "description": _of_snapshot("description", NULLABLE),
    "status": _of_snapshot("status", TEXT),
    "size": _of_snapshot("size", {"type": "integer"}),
    "volume_id": _of_snapshot("volume_id", TEXT),
    "created_at": Field(_created, TEXT),
    "updated_at": Field(_updated, NULLABLE),
    "metadata": attribute("metadata", {"type": "object"}),
}
api.view(View("snapshot brief", BRIEF))
api.view(
    View(
        "snapshot",
        {
            **BRIEF,
            "os-extended-snapshot-attributes:progress": Field(_progress, TEXT, EXTENDED),
            "os-extended-snapshot-attributes:project_id": _of_snapshot("project_id", TEXT, EXTENDED),
            # Groups are not supported.
            "group_snapshot_id": Field(lambda shown, ctx: None, {"type": "null"}),
            "user_id": _of_snapshot("user_id", TEXT),
            "consumes_quota": Field(lambda shown, ctx: True, {"type": "boolean"}),
        },
    )
)
