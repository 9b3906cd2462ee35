"""Views of migrations."""

from __future__ import annotations

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.migrations import status
from kilonova.compute.migrations.model import LIVE
from kilonova.compute.migrations.status import ShownMigration
from kilonova.compute.servers.views import LINKS, NULLABLE, TEXT
from kilonova.http import Context, Field, View, attribute
from kilonova.http.schema import Schema
from kilonova.http.views import OMIT

NUMBER = {"type": "integer"}
NULLABLE_NUMBER = {"type": ["integer", "null"]}


def links(move: ShownMigration, ctx: Context) -> object:
    """Only running live migrations can be shown there."""
    if move.migration.type != LIVE or not status.in_progress(move):
        return OMIT
    return ctx.links(f"/servers/{move.migration.server_id}/migrations/{move.migration.id}")


def _of(name: str, schema: Schema = TEXT) -> Field:
    return Field(lambda move, ctx: getattr(move.migration, name), schema)


def _host(name: str) -> Field:
    """Null for callers who may not see hosts."""
    return Field(lambda move, ctx: getattr(move.migration, name) if move.shows_hosts else None, NULLABLE)


def _transferred(kind: str, part: str) -> Field:
    """Null until the host has reported the amounts."""

    def value(move: ShownMigration, ctx: Context) -> int | None:
        transfer = move.migration.transfer
        if transfer is None:
            return None
        is_memory = kind == "memory"
        total = transfer.memory_total if is_memory else transfer.disk_total
        processed = transfer.memory_processed if is_memory else transfer.disk_processed
        return {"total": total, "processed": processed, "remaining": max(total - processed, 0)}[part]

    return Field(value, NULLABLE_NUMBER)


COMMON = {
    "id": _of("id", NUMBER),
    "uuid": _of("operation_id"),
    "status": Field(lambda move, ctx: status.status(move), TEXT),
    "source_compute": _host("source_host"),
    "source_node": _host("source_node"),
    "dest_compute": _host("dest_host"),
    "dest_host": attribute("dest_address", NULLABLE),
    "dest_node": _host("dest_node"),
    "user_id": _of("user_id"),
    "project_id": _of("project_id"),
    "created_at": Field(lambda move, ctx: clock.iso_micro(move.migration.created_at), TEXT),
    "updated_at": Field(lambda move, ctx: clock.iso_micro(move.changed_at), TEXT),
}

api.view(
    View(
        "migration",
        {
            **COMMON,
            "instance_uuid": _of("server_id"),
            "migration_type": _of("type"),
            "old_instance_type_id": attribute("old_flavor_number", NULLABLE_NUMBER),
            "new_instance_type_id": attribute("new_flavor_number", NULLABLE_NUMBER),
            "links": Field(links, LINKS, optional=True),
            "reason": Field(lambda move, ctx: status.reason(move), NULLABLE),
        },
    )
)
api.view(
    View(
        "server migration",
        {
            **COMMON,
            "server_uuid": _of("server_id"),
            **{
                f"{kind}_{part}_bytes": _transferred(kind, part)
                for kind in ("memory", "disk")
                for part in ("total", "processed", "remaining")
            },
        },
    )
)
