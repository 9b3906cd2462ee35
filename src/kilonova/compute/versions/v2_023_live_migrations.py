"""A server's running live migrations can be listed and shown; migrations show their type and a link."""

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
