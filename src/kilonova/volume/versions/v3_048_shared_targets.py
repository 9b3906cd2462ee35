"""Volumes show whether they share a connection with others, and their service."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.48", __doc__, [view("volume", "new volume").gains("service_uuid", "shared_targets")])
