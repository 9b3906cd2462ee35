"""Allocation candidates can be filtered by traits, and show the traits of their providers."""

from kilonova.http.versions import Microversion, query, view

version = Microversion(
    "1.17", __doc__, [query("GET /allocation_candidates").gains("required"), view("provider summary").gains("traits")]
)
