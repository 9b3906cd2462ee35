"""Resource locks forbid the deletion of a share."""

from kilonova.http.versions import Microversion, route
from kilonova.share.locks.api import LOCK, LOCKS

version = Microversion(
    "2.81",
    __doc__,
    [
        *(route(method, LOCKS).begins() for method in ("GET", "POST")),
        *(route(method, LOCK).begins() for method in ("GET", "PUT", "DELETE")),
    ],
)
