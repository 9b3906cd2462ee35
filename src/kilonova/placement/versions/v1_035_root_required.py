"""Allocation candidates can be filtered by traits of the tree's root."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.35", __doc__, [query("GET /allocation_candidates").gains("root_required")])
