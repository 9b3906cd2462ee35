"""A volume that is attached to a server can be given a tag."""

from kilonova.compute.volume_attachments.api import ATTACHMENTS
from kilonova.http.versions import Microversion, request

version = Microversion("2.49", __doc__, [request(f"POST {ATTACHMENTS}").gains("volumeAttachment.tag")])
