"""Allocation candidates can have numbered groups, each served by one provider."""

from kilonova.http.versions import Microversion, query
from kilonova.placement.candidates.api import NUMBER
from kilonova.placement.candidates.query import NUMBERED

version = Microversion(
    "1.25",
    __doc__,
    [
        query("GET /allocation_candidates").gains(
            f"^resources{NUMBER}$", f"^required{NUMBER}$", f"^member_of{NUMBER}$", "group_policy"
        ),
        NUMBERED,
    ],
)
