"""Servers have tags, which their views show, and lists of servers are filtered by them."""

from kilonova.compute.server_tags.api import TAG, TAGS
from kilonova.http.versions import Microversion, query, route, view

FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")

version = Microversion(
    "2.26",
    __doc__,
    [
        *(route(method, TAGS).begins() for method in ("GET", "PUT", "DELETE")),
        *(route(method, TAG).begins() for method in ("GET", "PUT", "DELETE")),
        query("GET /servers").gains(*FILTERS),
        query("GET /servers/detail").gains(*FILTERS),
        view("server", "server detail", "server update", "server rebuild").gains("tags"),
    ],
)
