"""The volumes of a server are shown with the ids of their attachments and devices, not with the volume's id twice."""

from kilonova.compute.volume_attachments.views import ID
from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.89",
    __doc__,
    [
        view("volume attachment").gains("attachment_id", "bdm_uuid"),
        view("volume attachment").loses("id", value=ID.value, schema=dict(ID.schema)),
    ],
)
