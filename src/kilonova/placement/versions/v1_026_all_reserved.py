"""An inventory may be fully reserved."""

from kilonova.http.versions import Microversion
from kilonova.placement.rest.inventories import FULLY_RESERVED

version = Microversion("1.26", __doc__, [FULLY_RESERVED])
