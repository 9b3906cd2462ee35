"""Snapshots can be filtered by metadata."""

from kilonova.http.versions import Microversion
from kilonova.volume.snapshots.search import METADATA

version = Microversion("3.22", __doc__, [METADATA])
