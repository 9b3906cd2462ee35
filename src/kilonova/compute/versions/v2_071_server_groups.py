"""Views of a single server show its server group."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.71", __doc__, [view("server", "server update", "server rebuild").gains("server_groups")])
