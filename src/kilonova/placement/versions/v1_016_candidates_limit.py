"""The number of allocation candidates can be limited."""

from kilonova.http.versions import Microversion, query

version = Microversion("1.16", __doc__, [query("GET /allocation_candidates").gains("limit")])
