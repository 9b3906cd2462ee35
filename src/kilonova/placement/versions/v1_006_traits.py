"""Traits, and the traits of providers."""

from kilonova.http.versions import Microversion, route, view
from kilonova.placement.rest.traits import ALL_PATH, ONE_PATH, PROVIDER_TRAITS_PATH

version = Microversion(
    "1.6",
    __doc__,
    [
        route("GET", ALL_PATH).begins(),
        route("GET", ONE_PATH).begins(),
        route("PUT", ONE_PATH).begins(),
        route("DELETE", ONE_PATH).begins(),
        route("GET", PROVIDER_TRAITS_PATH).begins(),
        route("PUT", PROVIDER_TRAITS_PATH).begins(),
        route("DELETE", PROVIDER_TRAITS_PATH).begins(),
        view("provider links").gains("traits"),
    ],
)
