"""Attaching a volume does not wait for the operation: the response has no body, and another status."""

from kilonova.compute.volume_attachments.api import ATTACHMENTS, WITHOUT_BODY
from kilonova.http.versions import Microversion, response

version = Microversion("2.101", __doc__, [WITHOUT_BODY, response(f"POST {ATTACHMENTS}").status(before=200)])
