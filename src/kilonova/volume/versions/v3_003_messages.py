"""Messages say why an operation failed."""

from kilonova.http.versions import Microversion, route

version = Microversion(
    "3.3",
    __doc__,
    [
        route("GET", "/messages").begins(),
        route("GET", "/messages/{message_id}").begins(),
        route("DELETE", "/messages/{message_id}").begins(),
    ],
)
