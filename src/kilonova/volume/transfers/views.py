"""Views of transfers. The key is shown only in the response to create."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Field, View, col
from kilonova.volume.api import api

_TEXT = {"type": "string"}
_NULLABLE = {"type": ["string", "null"]}

_BRIEF = {
    "id": col("id", _TEXT),
    "volume_id": col("volume_id", _TEXT),
    "name": col("name", _NULLABLE),
    "links": Field(lambda row, ctx: ctx.links(f"/volume-transfers/{row['id']}"), {"type": "array"}),
}
_DETAIL = {
    **_BRIEF,
    "created_at": Field(lambda row, ctx: clock.iso_micro(row["created_at"]), _TEXT),
    "no_snapshots": col("no_snapshots", {"type": "boolean"}),
    "source_project_id": col("project_id", _TEXT),
    # Accepted transfers are deleted.
    "destination_project_id": Field(lambda row, ctx: None, {"type": "null"}),
    "accepted": Field(lambda row, ctx: False, {"type": "boolean"}),
}

api.view(View("transfer brief", _BRIEF))
api.view(View("transfer", _DETAIL))
api.view(View("new transfer", {**_DETAIL, "auth_key": col("auth_key", _TEXT)}))
