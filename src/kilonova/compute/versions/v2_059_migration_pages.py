"""Migrations show their uuid; their list is paged, newest first, and refuses unknown query keys."""

from kilonova.compute.migrations.queries import PAGED
from kilonova.http.versions import Microversion, query, view

version = Microversion(
    "2.59",
    __doc__,
    [
        view("migration", "server migration").gains("uuid"),
        query("GET /os-migrations").gains("limit", "marker", "changes-since"),
        query("GET /os-migrations").closes(),
        PAGED,
    ],
)
