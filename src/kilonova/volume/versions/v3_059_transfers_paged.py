"""Transfers are sorted, paged and filtered."""

from kilonova.http.versions import Microversion
from kilonova.volume.transfers.api import PAGED

version = Microversion("3.59", __doc__, [PAGED])
