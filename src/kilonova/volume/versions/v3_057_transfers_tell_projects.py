"""Transfers show the source and the destination project, and whether they are accepted."""

from kilonova.http.versions import Microversion, view

version = Microversion(
    "3.57",
    __doc__,
    [view("transfer", "new transfer").gains("source_project_id", "destination_project_id", "accepted")],
)
