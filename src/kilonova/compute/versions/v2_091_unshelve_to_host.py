"""A shelved and offloaded server can be unshelved to a `host`; an `availability_zone` of null removes its pin."""

from kilonova.http.parameter_types import NAME
from kilonova.http.versions import Microversion, action

version = Microversion(
    "2.91",
    __doc__,
    [action("unshelve").gains("host"), action("unshelve").changes("availability_zone", before=NAME)],
)
