"""Snapshots are found by their metadata."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.volume.snapshots.listing import METADATA

version = Microversion("3.22", __doc__, [behaviour(METADATA)])
