"""Views of volume attachments. Rows are block devices."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import View, col

_COMMON = {
    "serverId": col("server_id", TEXT),
    "volumeId": col("volume_id", TEXT),
    "device": col("device_name", NULLABLE),
    "tag": col("tag", NULLABLE),
    "delete_on_termination": col("delete_on_termination", {"type": "boolean"}),
}
# Before 2.89 the id of an attachment is the volume's id.
ID = col("volume_id", TEXT)

api.view(
    View(
        "volume attachment",
        {**_COMMON, "attachment_id": col("attachment_id", NULLABLE), "bdm_uuid": col("uuid", TEXT)},
    )
)
api.view(View("new volume attachment", {"id": ID, **_COMMON}))
