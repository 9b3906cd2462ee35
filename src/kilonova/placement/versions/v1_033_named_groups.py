"""Suffixes of request groups may have up to 64 letters, digits, dashes and underscores."""

from kilonova.http.versions import Microversion, query
from kilonova.placement.candidates.api import NUMBER, SUFFIX, TEXT

KINDS = ("resources", "required", "member_of", "in_tree")

version = Microversion(
    "1.33",
    __doc__,
    [
        query("GET /allocation_candidates").gains(*(f"^{kind}{SUFFIX}$" for kind in KINDS)),
        query("GET /allocation_candidates").loses(*(f"^{kind}{NUMBER}$" for kind in KINDS), schema=TEXT),
    ],
)
