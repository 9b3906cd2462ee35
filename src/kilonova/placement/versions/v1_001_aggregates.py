"""Aggregates of providers can be read and replaced."""

from kilonova.http.versions import Microversion, route, view
from kilonova.placement.rest.aggregates import PATH

version = Microversion(
    "1.1",
    __doc__,
    [route("GET", PATH).begins(), route("PUT", PATH).begins(), view("provider links").gains("aggregates")],
)
