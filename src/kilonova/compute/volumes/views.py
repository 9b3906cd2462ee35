"""Views of the volume and snapshot proxies, with the field names of the old API."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, OBJECT, TEXT
from kilonova.http import Context, Field, View, col

INTEGER = {"type": "integer"}


def attachments(volume: Any, ctx: Context) -> list[dict[str, str]]:
    """A volume without attachments shows a list with an empty object."""
    shown = [
        {
            "id": volume["id"],
            "volumeId": volume["id"],
            "serverId": attachment["server_id"],
            "device": attachment["device"] or "",
        }
        for attachment in volume["attachments"]
        if attachment["server_id"]
    ]
    return shown or [{}]


_COMMON = {
    "id": col("id", TEXT),
    "status": col("status", TEXT),
    "size": col("size", INTEGER),
    "createdAt": col("created_at", TEXT),
    "displayName": col("name", NULLABLE),
    "displayDescription": col("description", NULLABLE),
}

api.view(
    View(
        "volume of old",
        {
            **_COMMON,
            "availabilityZone": col("availability_zone", NULLABLE),
            "volumeType": col("volume_type", NULLABLE),
            "snapshotId": col("snapshot_id", NULLABLE),
            "metadata": col("metadata", OBJECT),
            "attachments": Field(attachments, {"type": "array", "items": OBJECT}),
        },
    )
)
api.view(View("snapshot of old", {**_COMMON, "volumeId": col("volume_id", TEXT)}))
