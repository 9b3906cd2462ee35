"""Allocation candidates can be filtered by the aggregates of their providers."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.21", __doc__, [query("GET /allocation_candidates").gains("member_of")])
