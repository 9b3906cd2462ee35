"""Attaching a volume is not waited for: the answer has no body, and another status."""

from kilonova.compute.volume_attachments.api import ATTACHMENTS, WITHOUT_BODY
from kilonova.http.versions import Microversion, answer, behaviour

version = Microversion("2.101", __doc__, [behaviour(WITHOUT_BODY), answer(f"POST {ATTACHMENTS}").status(before=200)])
