"""A lock can have a reason; lists of servers can be filtered by `locked`."""

from kilonova.http.versions import Microversion, query, view

version = Microversion(
    "2.73",
    __doc__,
    [
        view("server", "server detail", "server update", "server rebuild").gains("locked_reason"),
        query("GET /servers").gains("locked"),
        query("GET /servers/detail").gains("locked"),
    ],
)
