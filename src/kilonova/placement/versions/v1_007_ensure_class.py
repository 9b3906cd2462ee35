"""Putting a custom resource class makes it or confirms it; it can no longer be renamed."""

from kilonova.http.versions import Microversion, answer, behaviour, request
from kilonova.placement.rest.classes import CLASS, ENSURED

version = Microversion(
    "1.7",
    __doc__,
    [
        request("PUT /resource_classes/{name}").changes("", before=CLASS),
        answer("PUT /resource_classes/{name}").status(before=200),
        behaviour(ENSURED),
    ],
)
