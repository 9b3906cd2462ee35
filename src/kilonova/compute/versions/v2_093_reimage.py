"""Rebuilding a volume-backed server replaces the content of its root volume by the image. The external event
`volume-reimaged` is new: the volume service reports the end.
"""

from kilonova.compute.external_events.schemas import VOLUME_REIMAGED, names
from kilonova.compute.servers.actions.rebuild import REPLACED
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.93",
    __doc__,
    [
        REPLACED,
        request("POST /os-server-external-events").changes(
            "events[].name", before=names(before=VOLUME_REIMAGED), required_before=True
        ),
    ],
)
