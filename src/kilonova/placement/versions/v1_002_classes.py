"""There are resource classes, and custom ones can be made, renamed and deleted."""

from kilonova.http.versions import Microversion, route
from kilonova.placement.rest.classes import ALL, ONE

version = Microversion(
    "1.2",
    __doc__,
    [
        route("GET", ALL).begins(),
        route("POST", ALL).begins(),
        route("GET", ONE).begins(),
        route("PUT", ONE).begins(),
        route("DELETE", ONE).begins(),
    ],
)
