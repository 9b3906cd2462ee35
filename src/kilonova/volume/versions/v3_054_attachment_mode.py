"""Attachments can be read-only, by `mode`."""

from kilonova.http.versions import Microversion, request

version = Microversion("3.54", __doc__, [request("POST /attachments").gains("attachment.mode")])
