"""A volume or an interface that is attached to a server can be given a tag."""

from kilonova.compute.interfaces.api import INTERFACES
from kilonova.compute.volume_attachments.api import ATTACHMENTS
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.49",
    __doc__,
    [
        request(f"POST {ATTACHMENTS}").gains("volumeAttachment.tag"),
        request(f"POST {INTERFACES}").gains("interfaceAttachment.tag"),
    ],
)
