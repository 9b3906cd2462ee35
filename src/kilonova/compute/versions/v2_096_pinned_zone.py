"""Server views show the availability zone that the server is pinned to."""

from kilonova.http.versions import Microversion, view

version = Microversion(
    "2.96",
    __doc__,
    [view("server", "server detail", "server update", "server rebuild").gains("pinned_availability_zone")],
)
