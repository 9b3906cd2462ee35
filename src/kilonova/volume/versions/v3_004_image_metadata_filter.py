"""Volumes can be filtered by image metadata: `glance_metadata`."""

from kilonova.http.versions import Microversion
from kilonova.volume.filters import BY_IMAGE_METADATA

version = Microversion("3.4", __doc__, [BY_IMAGE_METADATA])
