"""Allocation candidates span provider trees, and show whole trees."""

from kilonova.http.versions import Microversion, view
from kilonova.placement.candidates.api import NESTED_CANDIDATES

version = Microversion(
    "1.29",
    __doc__,
    [NESTED_CANDIDATES, view("provider summary").gains("parent_provider_uuid", "root_provider_uuid")],
)
