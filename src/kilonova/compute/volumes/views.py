"""Views of the volume and snapshot proxies, with the field names of the old API."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, OBJECT, TEXT
from kilonova.http import Context, Field, View, attribute
from kilonova.volume.client import Volume

INTEGER = {"type": "integer"}


def attachments(volume: Volume, ctx: Context) -> list[dict[str, str]]:
    """A volume without attachments shows a list with an empty object."""
    shown = [
        {
            "id": volume.id,
            "volumeId": volume.id,
            "serverId": attachment.server_id,
            "device": attachment.device or "",
        }
        for attachment in volume.attachments
        if attachment.server_id
    ]
    return shown or [{}]


_COMMON = {
    "id": attribute("id", TEXT),
    "status": attribute("status", TEXT),
    "size": attribute("size", INTEGER),
    "createdAt": attribute("created_at", TEXT),
    "displayName": attribute("name", NULLABLE),
    "displayDescription": attribute("description", NULLABLE),
}

api.view(
    View(
        "volume of old",
        {
            **_COMMON,
            "availabilityZone": attribute("availability_zone", NULLABLE),
            "volumeType": attribute("volume_type", NULLABLE),
            "snapshotId": attribute("snapshot_id", NULLABLE),
            "metadata": attribute("metadata", OBJECT),
            "attachments": Field(attachments, {"type": "array", "items": OBJECT}),
        },
    )
)
api.view(View("snapshot of old", {**_COMMON, "volumeId": attribute("volume_id", TEXT)}))
