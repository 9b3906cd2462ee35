"""Rebuilding a server that boots from a volume destroys the volume's content only with `reimage_boot_volume: true`.
Without it the image must be the one that the volume was made of, and the content is kept.
"""

from kilonova.compute.servers.rebuilding import CONSENT
from kilonova.http.versions import Microversion, action, behaviour

version = Microversion("2.106", __doc__, [action("rebuild").gains("reimage_boot_volume"), behaviour(CONSENT)])
