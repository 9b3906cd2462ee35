"""Transfers show which project offers the volume and whether it has been taken over."""

from kilonova.http.versions import Microversion, view

version = Microversion(
    "3.57",
    __doc__,
    [view("transfer", "new transfer").gains("source_project_id", "destination_project_id", "accepted")],
)
