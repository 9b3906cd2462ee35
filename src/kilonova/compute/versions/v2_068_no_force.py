"""Live migration and evacuation lose `force`: the scheduler always verifies a named destination."""

from kilonova.http.errors import BadRequest
from kilonova.http.parameter_types import BOOLEAN, is_true
from kilonova.http.versions import Microversion, RequestBody, action


def force_to_unverified(body: RequestBody) -> RequestBody:
    """Handlers read `unverified`, a key that no version accepts from clients."""
    (requested,) = body.values()
    requested["unverified"] = is_true(requested.pop("force", False))
    if requested["unverified"] and not requested.get("host"):
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
