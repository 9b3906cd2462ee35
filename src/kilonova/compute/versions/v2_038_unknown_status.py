"""An unknown status in a list's filter is refused; before, nothing matched it."""

from kilonova.compute.servers.listing import UNKNOWN_STATUS_REFUSED
from kilonova.http.versions import Microversion

version = Microversion("2.38", __doc__, [UNKNOWN_STATUS_REFUSED])
