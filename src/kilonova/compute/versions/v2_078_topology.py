"""The NUMA topology of a server can be shown."""

from kilonova.compute.topology import TOPOLOGY
from kilonova.http.versions import Microversion, route

version = Microversion("2.78", __doc__, [route("GET", TOPOLOGY).begins()])
