"""Other services tell that a request for an accelerator was bound: the external event `accelerator-request-bound`."""

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
