"""The external event `accelerator-request-bound` is new."""

from kilonova.compute.external_events.schemas import REQUEST_BOUND, names
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.82",
    __doc__,
    [
        request("POST /os-server-external-events").changes(
            "events[].name", before=names(before=REQUEST_BOUND), required_before=True
        )
    ],
)
