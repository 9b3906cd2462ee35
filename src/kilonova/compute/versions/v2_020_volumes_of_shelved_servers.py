"""Volumes can also be attached to and detached from shelved servers."""

from kilonova.compute.volume_attachments.api import SHELVED
from kilonova.http.versions import Microversion

version = Microversion("2.20", __doc__, [SHELVED])
