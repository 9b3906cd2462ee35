"""A server's pinned availability zone can be removed, or set to the zone that the server is in."""

from kilonova.http.versions import Microversion, request

version = Microversion("2.104", __doc__, [request("PUT /servers/{server_id}").gains("server.pinned_availability_zone")])
