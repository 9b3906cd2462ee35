"""Volume attachments show the ids of their attachment and block device, in place of an id that repeats the volume's."""

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
