"""Attachments reserve a volume for a server, connect it to a host, and release it."""

from kilonova.http.versions import Microversion, route

version = Microversion(
    "3.27",
    __doc__,
    [
        route("GET", "/attachments").begins(),
        route("GET", "/attachments/detail").begins(),
        route("POST", "/attachments").begins(),
        route("GET", "/attachments/{attachment_id}").begins(),
        route("PUT", "/attachments/{attachment_id}").begins(),
        route("DELETE", "/attachments/{attachment_id}").begins(),
    ],
)
