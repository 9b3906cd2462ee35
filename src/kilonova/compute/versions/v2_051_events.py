"""All users who see an action see its events; the external event `volume-extended` is new."""

from kilonova.compute.external_events.schemas import VOLUME_EXTENDED, names
from kilonova.compute.instance_actions import EVENTS_FOR_ALL
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.51",
    __doc__,
    [
        EVENTS_FOR_ALL,
        request("POST /os-server-external-events").changes(
            "events[].name", before=names(before=VOLUME_EXTENDED), required_before=True
        ),
    ],
)
