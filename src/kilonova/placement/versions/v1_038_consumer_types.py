"""Consumers have a type, which is required and shown; usages are grouped by it."""

from kilonova.http.versions import Microversion, query, request, view
from kilonova.placement.rest.usages import USAGES_BY_TYPE

version = Microversion(
    "1.38",
    __doc__,
    [
        request("PUT /allocations/{consumer_uuid}").gains("consumer_type"),
        request("POST /allocations").gains("{}.consumer_type"),
        request("POST /reshaper").gains("allocations.{}.consumer_type"),
        view("allocations").gains("consumer_type"),
        query("GET /usages").gains("consumer_type"),
        USAGES_BY_TYPE,
    ],
)
