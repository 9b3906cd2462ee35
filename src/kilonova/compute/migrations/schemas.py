"""Query keys of the migration routes."""

from __future__ import annotations

from kilonova.http.pagination import LIMIT, MARKER
from kilonova.http.pieces import DATE_TIME, STRING, Schema

LIST: dict[str, Schema] = {
    **dict.fromkeys(("hidden", "host", "instance_uuid", "source_compute", "status", "migration_type"), STRING),
    **dict.fromkeys(("user_id", "project_id"), STRING),
    "limit": LIMIT,
    "marker": MARKER,
    "changes-since": DATE_TIME,
    "changes-before": DATE_TIME,
}
