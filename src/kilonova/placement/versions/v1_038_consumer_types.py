"""Consumers have a type, which has to be given and is shown; usages are told by it."""

from kilonova.http.versions import Microversion, behaviour, query, request, view
from kilonova.placement.rest.usages import BY_TYPE

version = Microversion(
    "1.38",
    __doc__,
    [
        request("PUT /allocations/{consumer_uuid}").gains("consumer_type"),
        request("POST /allocations").gains("{}.consumer_type"),
        request("POST /reshaper").gains("allocations.{}.consumer_type"),
        view("allocations").gains("consumer_type"),
        query("GET /usages").gains("consumer_type"),
        behaviour(BY_TYPE),
    ],
)
