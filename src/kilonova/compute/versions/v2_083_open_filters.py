"""All users may filter servers by zone, config drive, key, times, states and user."""

from kilonova.compute.servers.schemas import FILTER_BY_STATES
from kilonova.http.versions import Microversion

version = Microversion("2.83", __doc__, [FILTER_BY_STATES])
