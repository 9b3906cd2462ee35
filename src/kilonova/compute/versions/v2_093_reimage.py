"""Rebuilding a server that boots from a volume replaces the volume's content by the image, whichever that is. Other
services tell of the end of it by the event `volume-reimaged`.
"""

from kilonova.compute.external_events.schemas import VOLUME_REIMAGED, names
from kilonova.compute.servers.rebuilding import REPLACED
from kilonova.http.versions import Microversion, behaviour, request

version = Microversion(
    "2.93",
    __doc__,
    [
        behaviour(REPLACED),
        request("POST /os-server-external-events").changes(
            "events[].name", before=names(before=VOLUME_REIMAGED), required_before=True
        ),
    ],
)
