"""A lock can have a reason; lists of servers can be filtered by `locked`."""

from kilonova.http.parameter_types import ANYTHING
from kilonova.http.versions import Microversion, action, query, view


def without_reason(body: object) -> object:
    return {"lock": None}


version = Microversion(
    "2.73",
    __doc__,
    [
        action("lock").changes("", before=ANYTHING, required_before=True, upgrade=without_reason),
        view("server", "server detail", "server update", "server rebuild").gains("locked_reason"),
        query("GET /servers").gains("locked"),
        query("GET /servers/detail").gains("locked"),
    ],
)
