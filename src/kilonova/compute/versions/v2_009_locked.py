"""Server views show whether the server is locked."""

from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.9", __doc__, [view("server", "server detail", "server update", "server rebuild").gains("locked")]
)
