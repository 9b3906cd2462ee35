"""Snapshots show their group snapshot, which is always null."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.14", __doc__, [view("snapshot").gains("group_snapshot_id")])
