"""Volumes show their `provider_id` to administrators."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.21", __doc__, [view("volume", "new volume").gains("provider_id")])
