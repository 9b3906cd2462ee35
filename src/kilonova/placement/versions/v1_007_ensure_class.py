"""PUT of a custom resource class creates or confirms it; classes can no longer be renamed."""

from kilonova.http.versions import Microversion, request, response
from kilonova.placement.rest.resource_classes import CLASS, PUT_ENSURES

version = Microversion(
    "1.7",
    __doc__,
    [
        request("PUT /resource_classes/{name}").changes("", before=CLASS),
        response("PUT /resource_classes/{name}").status(before=200),
        PUT_ENSURES,
    ],
)
