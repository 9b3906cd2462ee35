"""Attachments are made for reading and writing, or for reading alone, as `mode` says."""

from kilonova.http.versions import Microversion, request

version = Microversion("3.54", __doc__, [request("POST /attachments").gains("attachment.mode")])
