"""Allocation candidates show all classes of their providers, not only requested classes."""

from kilonova.http.versions import Microversion, view
from kilonova.placement.candidates.api import requested_resources

version = Microversion(
    "1.27",
    __doc__,
    [view("provider summary").changes("resources", before=requested_resources, schema={"type": "object"})],
)
