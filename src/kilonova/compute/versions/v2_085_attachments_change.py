"""Whether a volume is deleted with its server can be changed. Only another volume than that of the path is a swap."""

from kilonova.compute.volume_attachments.api import ATTACHMENT, IMMUTABLE, UPDATES
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.85",
    __doc__,
    [
        UPDATES,
        *(
            request(f"PUT {ATTACHMENT}").gains(f"volumeAttachment.{name}")
            for name in ("delete_on_termination", *IMMUTABLE)
        ),
    ],
)
