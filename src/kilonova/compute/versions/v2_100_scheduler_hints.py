"""Server views show the scheduler hints of the server's creation."""

from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.100", __doc__, [view("server", "server detail", "server update", "server rebuild").gains("scheduler_hints")]
)
