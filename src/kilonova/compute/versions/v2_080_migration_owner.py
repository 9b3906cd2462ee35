"""Migrations show the user and project that requested them, and can be filtered by both."""

from kilonova.http.versions import Microversion, query, view

version = Microversion(
    "2.80",
    __doc__,
    [
        view("migration", "server migration").gains("user_id", "project_id"),
        query("GET /os-migrations").gains("user_id", "project_id"),
    ],
)
