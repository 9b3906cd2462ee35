"""Allocation candidates can be asked for by the aggregates that their providers belong to."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.21", __doc__, [query("GET /allocation_candidates").gains("member_of")])
