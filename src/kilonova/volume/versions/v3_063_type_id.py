"""Volumes show the id of their type."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.63", __doc__, [view("volume", "new volume").gains("volume_type_id")])
