"""A server can be migrated to a `host` other than its own, which the scheduler verifies."""

from kilonova.http.parameter_types import ANYTHING
from kilonova.http.versions import Microversion, action


def drop_body(body: object) -> object:
    """Old versions ignore the value."""
    return {"migrate": None}


version = Microversion(
    "2.56", __doc__, [action("migrate").changes("", before=ANYTHING, required_before=True, upgrade=drop_body)]
)
