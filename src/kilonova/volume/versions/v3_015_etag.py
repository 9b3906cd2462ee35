"""The metadata of a volume has an `ETag`. A replacement with `If-Match` does not overwrite other changes."""

from kilonova.http.versions import Microversion
from kilonova.volume.volumes.metadata import ETAG

version = Microversion("3.15", __doc__, [ETAG])
