"""Allocation candidates can be restricted to the tree of a provider."""

from kilonova.http.versions import Microversion, query
from kilonova.placement.candidates.api import NUMBER

version = Microversion("1.31", __doc__, [query("GET /allocation_candidates").gains("in_tree", f"^in_tree{NUMBER}$")])
