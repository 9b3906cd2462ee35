"""Snapshots show the snapshot of a group that they belong to; there are no groups, so it is always none."""

from kilonova.http.versions import Microversion, view

version = Microversion("3.14", __doc__, [view("snapshot").gains("group_snapshot_id")])
