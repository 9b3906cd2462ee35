"""Volumes can be filtered by group. Groups are not supported."""

from kilonova.http.versions import Microversion
from kilonova.volume.filters import BY_GROUP

version = Microversion("3.10", __doc__, [BY_GROUP])
