"""A compute service can be forced down, so that its servers can be evacuated without waiting."""

from kilonova.http.versions import Microversion, request, route, view

version = Microversion(
    "2.11",
    __doc__,
    [
        route("PUT", "/os-services/force-down").begins(),
        request("PUT /os-services/enable").gains("forced_down"),
        request("PUT /os-services/disable").gains("forced_down"),
        request("PUT /os-services/disable-log-reason").gains("forced_down"),
        view("service").gains("forced_down"),
    ],
)
