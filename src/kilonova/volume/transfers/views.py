"""Views of transfers. The key is shown only in the response to create."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Field, View, attribute
from kilonova.volume.api import api

_TEXT = {"type": "string"}
_NULLABLE = {"type": ["string", "null"]}


def _of_new(field: Field) -> Field:
    """The field of a new transfer."""
    return Field(lambda new, ctx: field.value(new.transfer, ctx), field.schema)


_BRIEF = {
    "id": attribute("id", _TEXT),
    "volume_id": attribute("volume_id", _TEXT),
    "name": attribute("name", _NULLABLE),
    "links": Field(lambda transfer, ctx: ctx.links(f"/volume-transfers/{transfer.id}"), {"type": "array"}),
}
_DETAIL = {
    **_BRIEF,
    "created_at": Field(lambda transfer, ctx: clock.iso_micro(transfer.created_at), _TEXT),
    "no_snapshots": attribute("no_snapshots", {"type": "boolean"}),
    "source_project_id": attribute("project_id", _TEXT),
    # Accepted transfers are deleted.
    "destination_project_id": Field(lambda transfer, ctx: None, {"type": "null"}),
    "accepted": Field(lambda transfer, ctx: False, {"type": "boolean"}),
}

api.view(View("transfer brief", _BRIEF))
api.view(View("transfer", _DETAIL))
api.view(
    View(
        "new transfer",
        {**{name: _of_new(field) for name, field in _DETAIL.items()}, "auth_key": attribute("auth_key", _TEXT)},
    )
)
