"""Views of volume attachments. They show block devices."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.compute.servers.views import NULLABLE, TEXT
from kilonova.http import View, attribute

_COMMON = {
    "serverId": attribute("server_id", TEXT),
    "volumeId": attribute("volume_id", TEXT),
    "device": attribute("device_name", NULLABLE),
    "tag": attribute("tag", NULLABLE),
    "delete_on_termination": attribute("delete_on_termination", {"type": "boolean"}),
}
# Before 2.89 the id of an attachment is the volume's id.
ID = attribute("volume_id", TEXT)

api.view(
    View(
        "volume attachment",
        {**_COMMON, "attachment_id": attribute("attachment_id", NULLABLE), "bdm_uuid": attribute("uuid", TEXT)},
    )
)
api.view(View("new volume attachment", {"id": ID, **_COMMON}))
