"""A shelved and offloaded server can be unshelved to an `availability_zone`, which it is then pinned to."""

from kilonova.http.parameter_types import ANYTHING
from kilonova.http.versions import Microversion, action


def without_body(body: object) -> object:
    return {"unshelve": None}


version = Microversion(
    "2.77",
    __doc__,
    [action("unshelve").changes("", before=ANYTHING, required_before=True, upgrade=without_body)],
)
