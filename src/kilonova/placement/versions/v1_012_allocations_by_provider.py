"""Allocations are an object with a key for each provider, in candidates and where they are written."""

from kilonova.http.versions import Microversion, view
from kilonova.placement.candidates.api import listed_allocations

version = Microversion(
    "1.12",
    __doc__,
    [view("allocation request").changes("allocations", before=listed_allocations, schema={"type": "array"})],
)
