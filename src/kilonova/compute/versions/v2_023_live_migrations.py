"""A server's live migrations can be looked at while they run; migrations show their type, and where to look at them."""

from kilonova.http.versions import Microversion, route, view

version = Microversion(
    "2.23",
    __doc__,
    [
        route("GET", "/servers/{server_id}/migrations").begins(),
        route("GET", "/servers/{server_id}/migrations/{migration_id}").begins(),
        view("migration").gains("migration_type", "links"),
    ],
)
