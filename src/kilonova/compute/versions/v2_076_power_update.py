"""The external event `power-update` is new: a server was powered on or off."""

from kilonova.compute.external_events.schemas import POWER_UPDATE, names
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.76",
    __doc__,
    [
        request("POST /os-server-external-events").changes(
            "events[].name", before=names(before=POWER_UPDATE), required_before=True
        )
    ],
)
