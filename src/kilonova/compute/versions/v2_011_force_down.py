"""A compute service can be declared down, so that its servers may be evacuated without waiting."""

from kilonova.http.versions import Microversion, route, view

version = Microversion(
    "2.11",
    __doc__,
    [
        route("PUT", "/os-services/force-down").begins(),
        view("service").gains("forced_down"),
    ],
)
