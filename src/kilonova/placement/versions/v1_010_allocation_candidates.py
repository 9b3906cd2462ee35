"""Allocation candidates can be listed, with summaries of their providers."""

from kilonova.http.versions import Microversion, route

version = Microversion("1.10", __doc__, [route("GET", "/allocation_candidates").begins()])
