"""Multiattach volumes can be attached, also to new servers."""

from kilonova.compute.block_devices.sources import MULTIATTACH
from kilonova.http.versions import Microversion

version = Microversion("2.60", __doc__, [MULTIATTACH])
