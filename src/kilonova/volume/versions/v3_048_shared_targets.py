"""Volumes show whether hosts reach several of them by one connection, and which service has them."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.48", __doc__, [view("volume", "new volume").gains("service_uuid", "shared_targets")])
