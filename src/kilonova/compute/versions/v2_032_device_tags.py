"""Network interfaces of a new server can be given a tag."""

from kilonova.compute.servers.schemas import network_list
from kilonova.http.versions import Microversion, request

version = Microversion("2.32", __doc__, [request("POST /servers").changes("server.networks", before=network_list())])
