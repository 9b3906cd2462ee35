"""The metadata of a volume comes with an `ETag`; who replaces it with that in `If-Match` overwrites no other change."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.volume.volumes.metadata import ETAG

version = Microversion("3.15", __doc__, [behaviour(ETAG)])
