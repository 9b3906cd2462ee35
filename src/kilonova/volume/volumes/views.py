"""Views of volumes. Rows need their details (`model.add_details`)."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.http import Context, Field, View, col
from kilonova.http.views import OMIT
from kilonova.volume.api import api
from kilonova.volume.backend_capabilities import POOL

HOST = "volume_extension:volume_host_attribute"
TENANT = "volume_extension:volume_tenant_attribute"
MIGRATION = "volume_extension:volume_mig_status_attribute"
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
OBJECT = {"type": "object"}
BOOLEAN = {"type": "boolean"}
NULL = {"type": "null"}


def attachment(row: Any, ctx: Context) -> dict[str, Any]:
    """A completed attachment, as its volume shows it."""
    return {
        "id": row["volume_id"],
        "attachment_id": row["id"],
        "volume_id": row["volume_id"],
        "server_id": row["server_id"],
        "host_name": row["host"] if ctx.may(HOST) else None,
        "device": row["mountpoint"],
        "attached_at": row["attached_at"] and clock.iso_micro(row["attached_at"]),
    }


def metadata(row: Any, ctx: Context) -> dict[str, str]:
    """The metadata, with `readonly` if that was ever set."""
    if row["readonly"] is None:
        return dict(row["metadata"])
    return {**row["metadata"], "readonly": str(row["readonly"])}


def _time(name: str) -> Field:
    return Field(lambda row, ctx: row[name] and clock.iso_micro(row[name]), NULLABLE)


def _updated(row: Any, ctx: Context) -> str | None:
    """None if the volume was never updated."""
    return clock.iso_micro(row["updated_at"]) if row["updated_at"] != row["created_at"] else None


def _always_null(policy: str | None = None) -> Field:
    """A field of an unsupported feature: groups, replication, migration, clusters."""
    return Field(lambda row, ctx: None, NULL, policy)


def _image_metadata(row: Any, ctx: Context) -> Any:
    return row["image_metadata"] or OMIT


# The responses to create and update show these.
COMMON = {
    "id": col("id", TEXT),
    "status": col("status", TEXT),
    "size": col("size", {"type": "integer"}),
    "availability_zone": col("zone", NULLABLE),
    "created_at": _time("created_at"),
    "updated_at": Field(_updated, NULLABLE),
    "name": col("name", NULLABLE),
    "description": col("description", NULLABLE),
    "volume_type": col("type_name", NULLABLE),
    "snapshot_id": col("snapshot_id", NULLABLE),
    "source_volid": col("source_volume_id", NULLABLE),
    "metadata": Field(metadata, OBJECT),
    "links": Field(lambda row, ctx: ctx.links(f"/volumes/{row['id']}"), {"type": "array"}),
    "user_id": col("user_id", TEXT),
    "bootable": Field(lambda row, ctx: "true" if row["bootable"] else "false", TEXT),
    "encrypted": Field(lambda row, ctx: False, BOOLEAN),
    "replication_status": _always_null(),
    "consistencygroup_id": _always_null(),
    "multiattach": col("multiattach", BOOLEAN),
    "attachments": Field(
        lambda row, ctx: [attachment(each, ctx) for each in row["attachments"]], {"type": "array", "items": OBJECT}
    ),
    "migration_status": _always_null(),
    "group_id": _always_null(),
    "provider_id": _always_null(HOST),
    "service_uuid": _always_null(),
    # Whether several volumes share one connection.
    "shared_targets": Field(lambda row, ctx: False, BOOLEAN),
    "cluster_name": _always_null(HOST),
    "volume_type_id": col("type_id", TEXT),
    "consumes_quota": Field(lambda row, ctx: True, BOOLEAN),
}

DETAIL = {
    **COMMON,
    "os-vol-host-attr:host": Field(lambda row, ctx: POOL, TEXT, HOST),
    "os-vol-tenant-attr:tenant_id": col("project_id", TEXT, TENANT),
    "os-vol-mig-status-attr:migstat": _always_null(MIGRATION),
    "os-vol-mig-status-attr:name_id": _always_null(MIGRATION),
    "volume_image_metadata": Field(_image_metadata, OBJECT, optional=True),
}

api.view(View("volume brief", {name: COMMON[name] for name in ("id", "name", "links")}))
api.view(View("volume", DETAIL))
api.view(View("new volume", COMMON))
api.view(
    View(
        "volume summary",
        {
            "total_size": col("total_size", {"type": "integer"}),
            "total_count": col("total_count", {"type": "integer"}),
            "metadata": col("metadata", OBJECT),
        },
    )
)
