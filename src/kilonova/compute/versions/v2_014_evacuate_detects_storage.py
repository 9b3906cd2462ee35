"""Evacuation detects by itself whether hosts share their storage, and its response is empty."""

from kilonova.compute.servers.actions.evacuate import NO_PASSWORD
from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import BOOLEAN, is_true
from kilonova.http.versions import Microversion, RequestBody, action


def remove_shared_storage(body: RequestBody) -> RequestBody:
    requested = body["evacuate"]
    if is_true(requested.pop("onSharedStorage")) and "adminPass" in requested:
        raise BadRequest("admin password can't be changed on existing disk")
    return body


version = Microversion(
    "2.14",
    __doc__,
    [
        action("evacuate").loses("onSharedStorage", schema=BOOLEAN, required=True, upgrade=remove_shared_storage),
        NO_PASSWORD,
    ],
)
