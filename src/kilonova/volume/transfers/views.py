"""How transfers are shown. Their key is shown once, to whoever made them."""

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
_WHOLE = {
    **_BRIEF,
    "created_at": Field(lambda row, ctx: clock.iso_micro(row["created_at"]), _TEXT),
    "no_snapshots": col("no_snapshots", {"type": "boolean"}),
    "source_project_id": col("project_id", _TEXT),
    # Who takes a volume over ends the transfer, so none that is shown has been accepted.
    "destination_project_id": Field(lambda row, ctx: None, {"type": "null"}),
    "accepted": Field(lambda row, ctx: False, {"type": "boolean"}),
}

api.view(View("transfer brief", _BRIEF))
api.view(View("transfer", _WHOLE))
api.view(View("new transfer", {**_WHOLE, "auth_key": col("auth_key", _TEXT)}))
