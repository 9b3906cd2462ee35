"""Flavors have a description, which can be changed."""

from kilonova.http.versions import Microversion, request, route, view

version = Microversion(
    "2.55",
    __doc__,
    [
        request("POST /flavors").gains("flavor.description"),
        route("PUT", "/flavors/{flavor_id}").begins(),
        view("flavor", "flavor summary").gains("description"),
    ],
)
