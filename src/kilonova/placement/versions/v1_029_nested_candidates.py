"""Allocation candidates span trees of providers, and show whole trees."""

from kilonova.http.versions import Microversion, behaviour, view
from kilonova.placement.candidates.api import TREES

version = Microversion(
    "1.29",
    __doc__,
    [behaviour(TREES), view("provider summary").gains("parent_provider_uuid", "root_provider_uuid")],
)
