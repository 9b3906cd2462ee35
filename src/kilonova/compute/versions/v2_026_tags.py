"""Server views show the server's tags."""

from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.26", __doc__, [view("server", "server detail", "server update", "server rebuild").gains("tags")]
)
