"""How the volume service's volumes and snapshots are shown to compute's clients, who know other names for all of it."""

from __future__ import annotations

from typing import Any

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, OBJECT, TEXT
from kilonova.http import Context, Field, View, col

WHOLE = {"type": "integer"}


def attachments(volume: Any, ctx: Context) -> list[dict[str, str]]:
    """One that is empty stands for none."""
    shown = [
        {"id": volume["id"], "volumeId": volume["id"], "serverId": one["server_id"], "device": one["device"] or ""}
        for one in volume["attachments"]
        if one["server_id"]
    ]
    return shown or [{}]


_COMMON = {
    "id": col("id", TEXT),
    "status": col("status", TEXT),
    "size": col("size", WHOLE),
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
