"""Evacuation finds out by itself whether hosts share their storage, and its answer is empty."""

from typing import Any

from kilonova.compute.servers.evacuating import NO_PASSWORD
from kilonova.http.errors import BadRequest
from kilonova.http.pieces import BOOLEAN, is_true
from kilonova.http.versions import Microversion, action, behaviour


def storage_is_detected(body: dict[str, Any]) -> dict[str, Any]:
    asked = body["evacuate"]
    if is_true(asked.pop("onSharedStorage")) and "adminPass" in asked:
        raise BadRequest("admin password can't be changed on existing disk")
    return body


version = Microversion(
    "2.14",
    __doc__,
    [
        action("evacuate").loses("onSharedStorage", schema=BOOLEAN, required=True, upgrade=storage_is_detected),
        behaviour(NO_PASSWORD),
    ],
)
