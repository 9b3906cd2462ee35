"""Views of volumes, of `Volume` in the brief list and `ShownVolume` elsewhere."""

from __future__ import annotations

from kilonova import clock
from kilonova.http import Context, Field, View, attribute
from kilonova.http.schema import Schema
from kilonova.http.views import OMIT
from kilonova.volume.api import api
from kilonova.volume.attachments.model import Attachment
from kilonova.volume.backend_capabilities import POOL
from kilonova.volume.volumes.model import ShownVolume, Volume

HOST = "volume_extension:volume_host_attribute"
TENANT = "volume_extension:volume_tenant_attribute"
MIGRATION = "volume_extension:volume_mig_status_attribute"
TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
OBJECT = {"type": "object"}
BOOLEAN = {"type": "boolean"}
NULL = {"type": "null"}


def _attachment(attachment: Attachment, ctx: Context) -> dict[str, object]:
    """A completed attachment, as its volume shows it."""
    return {
        "id": attachment.volume_id,
        "attachment_id": attachment.id,
        "volume_id": attachment.volume_id,
        "server_id": attachment.server_id,
        "host_name": attachment.host if ctx.may(HOST) else None,
        "device": attachment.mountpoint,
        "attached_at": attachment.attached_at and clock.iso_micro(attachment.attached_at),
    }


def _attachments(shown: ShownVolume, ctx: Context) -> list[dict[str, object]]:
    return [_attachment(each, ctx) for each in shown.attachments]


def _metadata(shown: ShownVolume, ctx: Context) -> dict[str, str]:
    """The metadata, with `readonly` if that was ever set."""
    readonly = shown.volume.readonly
    return shown.metadata if readonly is None else {**shown.metadata, "readonly": str(readonly)}


def _of_volume(name: str, schema: Schema, policy: str | None = None) -> Field:
    """A field that shows an attribute of the volume unchanged."""
    return Field(lambda shown, ctx: getattr(shown.volume, name), schema, policy)


def _created(shown: ShownVolume, ctx: Context) -> str:
    return clock.iso_micro(shown.volume.created_at)


def _updated(shown: ShownVolume, ctx: Context) -> str | None:
    """None if the volume was never updated."""
    volume = shown.volume
    return clock.iso_micro(volume.updated_at) if volume.updated_at != volume.created_at else None


def _links(volume: Volume, ctx: Context) -> list[dict[str, str]]:
    return ctx.links(f"/volumes/{volume.id}")


def _always_null(policy: str | None = None) -> Field:
    """A field of an unsupported feature: groups, replication, migration, clusters."""
    return Field(lambda shown, ctx: None, NULL, policy)


def _image_metadata(shown: ShownVolume, ctx: Context) -> object:
    return shown.volume.image_metadata or OMIT


# The responses to create and update show these.
COMMON = {
    "id": _of_volume("id", TEXT),
    "status": _of_volume("status", TEXT),
    "size": _of_volume("size", {"type": "integer"}),
    "availability_zone": _of_volume("zone", NULLABLE),
    "created_at": Field(_created, NULLABLE),
    "updated_at": Field(_updated, NULLABLE),
    "name": _of_volume("name", NULLABLE),
    "description": _of_volume("description", NULLABLE),
    "volume_type": attribute("type_name", NULLABLE),
    "snapshot_id": _of_volume("snapshot_id", NULLABLE),
    "source_volid": _of_volume("source_volume_id", NULLABLE),
    "metadata": Field(_metadata, OBJECT),
    "links": Field(lambda shown, ctx: _links(shown.volume, ctx), {"type": "array"}),
    "user_id": _of_volume("user_id", TEXT),
    "bootable": Field(lambda shown, ctx: "true" if shown.volume.bootable else "false", TEXT),
    "encrypted": Field(lambda shown, ctx: False, BOOLEAN),
    "replication_status": _always_null(),
    "consistencygroup_id": _always_null(),
    "multiattach": _of_volume("multiattach", BOOLEAN),
    "attachments": Field(_attachments, {"type": "array", "items": OBJECT}),
    "migration_status": _always_null(),
    "group_id": _always_null(),
    "provider_id": _always_null(HOST),
    "service_uuid": _always_null(),
    # Whether several volumes share one connection.
    "shared_targets": Field(lambda shown, ctx: False, BOOLEAN),
    "cluster_name": _always_null(HOST),
    "volume_type_id": _of_volume("type_id", TEXT),
    "consumes_quota": Field(lambda shown, ctx: True, BOOLEAN),
}

DETAIL = {
    **COMMON,
    "os-vol-host-attr:host": Field(lambda shown, ctx: POOL, TEXT, HOST),
    "os-vol-tenant-attr:tenant_id": _of_volume("project_id", TEXT, TENANT),
    "os-vol-mig-status-attr:migstat": _always_null(MIGRATION),
    "os-vol-mig-status-attr:name_id": _always_null(MIGRATION),
    "volume_image_metadata": Field(_image_metadata, OBJECT, optional=True),
}

BRIEF = {
    "id": attribute("id", TEXT),
    "name": attribute("name", NULLABLE),
    "links": Field(_links, {"type": "array"}),
}
api.view(View("volume brief", BRIEF))
api.view(View("volume", DETAIL))
api.view(View("new volume", COMMON))
api.view(
    View(
        "volume summary",
        {
            "total_size": attribute("total_size", {"type": "integer"}),
            "total_count": attribute("total_count", {"type": "integer"}),
            "metadata": attribute("metadata", OBJECT),
        },
    )
)
