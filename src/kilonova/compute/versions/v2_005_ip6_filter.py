"""All users may filter servers by `ip6`."""

from kilonova.compute.servers.schemas import FILTER_BY_IP6
from kilonova.http.versions import Microversion

version = Microversion("2.5", __doc__, [FILTER_BY_IP6])
