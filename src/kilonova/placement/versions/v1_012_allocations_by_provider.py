"""Allocations are an object with a key for each provider, in candidates and where they are written.

They are shown with the project and the user of the consumer.
"""

from kilonova.http.versions import Microversion, request, view
from kilonova.placement.candidates.api import listed_allocations
from kilonova.placement.rest.allocations import LISTED, from_list

version = Microversion(
    "1.12",
    __doc__,
    [
        request("PUT /allocations/{consumer_uuid}").changes(
            "allocations", before=LISTED, required_before=True, upgrade=from_list
        ),
        view("allocations").gains("project_id", "user_id"),
        view("allocation request").changes("allocations", before=listed_allocations, schema={"type": "array"}),
    ],
)
