"""A new server can be given tags."""

from kilonova.http.versions import Microversion, request

version = Microversion("2.52", __doc__, [request("POST /servers").gains("server.tags")])
