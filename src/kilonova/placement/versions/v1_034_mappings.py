"""Allocation candidates show which providers serve which group; allocations can be written with these mappings."""

from kilonova.http.versions import Microversion, request, view

version = Microversion(
    "1.34",
    __doc__,
    [
        view("allocation request").gains("mappings"),
        request("PUT /allocations/{consumer_uuid}").gains("mappings"),
        request("POST /allocations").gains("{}.mappings"),
        request("POST /reshaper").gains("allocations.{}.mappings"),
    ],
)
