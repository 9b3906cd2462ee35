"""Snapshots show the user who created them."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.41", __doc__, [view("snapshot").gains("user_id")])
