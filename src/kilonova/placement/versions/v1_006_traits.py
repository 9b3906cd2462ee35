"""There are traits, and providers have them."""

from kilonova.http.versions import Microversion, route, view
from kilonova.placement.rest.traits import ALL, ONE, PATH

version = Microversion(
    "1.6",
    __doc__,
    [
        route("GET", ALL).begins(),
        route("GET", ONE).begins(),
        route("PUT", ONE).begins(),
        route("DELETE", ONE).begins(),
        route("GET", PATH).begins(),
        route("PUT", PATH).begins(),
        route("DELETE", PATH).begins(),
        view("provider links").gains("traits"),
    ],
)
