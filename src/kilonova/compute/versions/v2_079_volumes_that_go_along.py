"""Whether an attached volume is deleted with its server can be set, and is shown."""

from kilonova.compute.volume_attachments.api import ATTACHMENTS
from kilonova.http.versions import Microversion, request, view

version = Microversion(
    "2.79",
    __doc__,
    [
        request(f"POST {ATTACHMENTS}").gains("volumeAttachment.delete_on_termination"),
        view("volume attachment", "new volume attachment").gains("delete_on_termination"),
    ],
)
