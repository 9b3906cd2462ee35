"""`/os-volumes_boot`, an alias of `/servers`, ends."""

from kilonova.compute.volumes_boot import ROUTES
from kilonova.http.versions import Existence, Microversion

version = Microversion("2.103", __doc__, [Existence(key, f"`{key}` ends", exists_below=True) for key in ROUTES])
