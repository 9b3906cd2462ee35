"""A server's pin can be dropped, and set to the availability zone that the server is in."""

from kilonova.http.versions import Microversion, request

version = Microversion("2.104", __doc__, [request("PUT /servers/{server_id}").gains("server.pinned_availability_zone")])
