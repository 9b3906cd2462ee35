"""Server views show the state of the server's host, to administrators by default."""

from kilonova.http.versions import Microversion, view

version = Microversion("2.16", __doc__, [view("server", "server detail").gains("host_status")])
