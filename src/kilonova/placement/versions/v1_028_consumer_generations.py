"""Consumers have a generation, which is shown and required; empty allocations delete a consumer."""

from kilonova.http.versions import Microversion, request, view
from kilonova.placement.rest.allocations import NONEMPTY_ALLOCATIONS

_PUT = request("PUT /allocations/{consumer_uuid}")

version = Microversion(
    "1.28",
    __doc__,
    [
        _PUT.gains("consumer_generation"),
        _PUT.changes("allocations", before=NONEMPTY_ALLOCATIONS, required_before=True),
        request("POST /allocations").gains("{}.consumer_generation"),
        view("allocations").gains("consumer_generation"),
        view("allocation of a provider").gains("consumer_generation"),
    ],
)
