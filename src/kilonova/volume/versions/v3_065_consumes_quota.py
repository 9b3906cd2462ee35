"""Volumes and snapshots show, and can be filtered by, whether they count against the quota. All do."""

from kilonova.http.versions import Microversion, view
from kilonova.volume.filters import BY_QUOTA

version = Microversion("3.65", __doc__, [BY_QUOTA, view("volume", "new volume", "snapshot").gains("consumes_quota")])
