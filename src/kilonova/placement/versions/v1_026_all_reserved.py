"""All of an inventory may be reserved."""

from kilonova.http.versions import Microversion, behaviour
from kilonova.placement.rest.inventories import RESERVED_WHOLE

version = Microversion("1.26", __doc__, [behaviour(RESERVED_WHOLE)])
