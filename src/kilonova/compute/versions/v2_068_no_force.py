"""Live migration and evacuation lose `force`: a named destination is always verified by the scheduler."""

from typing import Any

from kilonova.http.errors import BadRequest
from kilonova.http.pieces import BOOLEAN, is_true
from kilonova.http.versions import Microversion, action


def force_to_unverified(body: dict[str, Any]) -> dict[str, Any]:
    """What handlers read is a key that no version takes."""
    (asked,) = body.values()
    asked["unverified"] = is_true(asked.pop("force", False))
    if asked["unverified"] and not asked.get("host"):
        raise BadRequest("Can't force to a non-provided destination")
    return body


version = Microversion(
    "2.68",
    __doc__,
    [
        action("os-migrateLive").loses("force", schema=BOOLEAN, upgrade=force_to_unverified),
        action("evacuate").loses("force", schema=BOOLEAN, upgrade=force_to_unverified),
    ],
)
