"""Resource classes: custom classes can be created, renamed and deleted."""

from kilonova.http.versions import Microversion, route
from kilonova.placement.rest.resource_classes import ALL_PATH, ONE_PATH

version = Microversion(
    "1.2",
    __doc__,
    [
        route("GET", ALL_PATH).begins(),
        route("POST", ALL_PATH).begins(),
        route("GET", ONE_PATH).begins(),
        route("PUT", ONE_PATH).begins(),
        route("DELETE", ONE_PATH).begins(),
    ],
)
