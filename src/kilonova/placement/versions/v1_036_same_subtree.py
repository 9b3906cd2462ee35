"""`same_subtree` keeps groups below one of their providers; such groups may be without resources."""

from kilonova.http.versions import Microversion, query
from kilonova.placement.candidates.query import RESOURCELESS

version = Microversion("1.36", __doc__, [query("GET /allocation_candidates").gains("same_subtree"), RESOURCELESS])
