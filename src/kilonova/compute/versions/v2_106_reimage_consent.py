"""Rebuilding a volume-backed server replaces the content of its root volume only with `reimage_boot_volume: true`.
Without it the image must be the one that the volume was created from, and the content is kept.
"""

from kilonova.compute.servers.actions.rebuild import CONSENT
from kilonova.http.versions import Microversion, action

version = Microversion("2.106", __doc__, [action("rebuild").gains("reimage_boot_volume"), CONSENT])
