"""Administrators can delete a volume in any status, by `force` in the query."""

from kilonova.http.versions import Microversion
from kilonova.volume.volumes.api import FORCED

version = Microversion("3.23", __doc__, [FORCED])
