"""Allocation candidates can be asked for by traits of the root of the tree."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.35", __doc__, [query("GET /allocation_candidates").gains("root_required")])
