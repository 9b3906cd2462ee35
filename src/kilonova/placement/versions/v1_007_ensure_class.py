"""Putting a custom resource class makes it or confirms it; it can no longer be renamed."""

from kilonova.http.versions import Microversion, behaviour, request
from kilonova.placement.rest.classes import CLASS, ENSURED

version = Microversion(
    "1.7", __doc__, [request("PUT /resource_classes/{name}").changes("", before=CLASS), behaviour(ENSURED)]
)
