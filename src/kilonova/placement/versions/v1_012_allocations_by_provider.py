"""Allocations are an object keyed by provider, in candidates and where they are written.

They are shown with the project and the user of the consumer.
"""

from kilonova.http.versions import Microversion, request, view
from kilonova.placement.candidates.api import allocations_as_list
from kilonova.placement.rest.allocations import ALLOCATION_LIST, allocations_from_list

version = Microversion(
    "1.12",
    __doc__,
    [
        request("PUT /allocations/{consumer_uuid}").changes(
            "allocations", before=ALLOCATION_LIST, required_before=True, upgrade=allocations_from_list
        ),
        view("allocations").gains("project_id", "user_id"),
        view("allocation request").changes("allocations", before=allocations_as_list, schema={"type": "array"}),
    ],
)
