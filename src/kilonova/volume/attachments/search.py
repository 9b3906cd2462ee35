"""Filters and sort keys of the list of attachments."""

from __future__ import annotations

from kilonova.volume import filters
from kilonova.volume.attachments import model
from kilonova.volume.search import Search

_FILTERS = filters.equal_columns(
    *("id", "volume_id", "status", "project_id"), instance_id="server_id", attach_status="status"
)
SEARCH = Search(
    key="attachments",
    record=model.Attachment,
    show=model.SHOW,
    find=model.find,
    sort=filters.columns("id", "volume_id", "status", "created_at", "updated_at"),
    filters=lambda ctx: _FILTERS,
    offered=filters.OFFERED["attachment"],
)
