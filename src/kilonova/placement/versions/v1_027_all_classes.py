"""Allocation candidates show all that their providers have, not only the classes that were asked for."""

from kilonova.http.versions import Microversion, view
from kilonova.placement.candidates.api import asked_resources

version = Microversion(
    "1.27",
    __doc__,
    [view("provider summary").changes("resources", before=asked_resources, schema={"type": "object"})],
)
