"""Bodies of external events."""

from __future__ import annotations

from kilonova.http.parameter_types import STRING, UUID, Schema, closed_object

VOLUME_EXTENDED, POWER_UPDATE, REQUEST_BOUND = "volume-extended", "power-update", "accelerator-request-bound"
VOLUME_REIMAGED, VIF_DELETED = "volume-reimaged", "network-vif-deleted"
NETWORK_CHANGED, VIF_PLUGGED, VIF_UNPLUGGED = "network-changed", "network-vif-plugged", "network-vif-unplugged"
# In the order of the microversions that added them.
NAMES = (
    *(NETWORK_CHANGED, VIF_PLUGGED, VIF_UNPLUGGED, VIF_DELETED),
    *(VOLUME_EXTENDED, POWER_UPDATE, REQUEST_BOUND, VOLUME_REIMAGED),
)
STATUSES = ("failed", "completed", "in-progress")


def names(before: str | None = None) -> Schema:
    """All names of events, or those that were added before this one."""
    known = NAMES if before is None else NAMES[: NAMES.index(before)]
    return {**STRING, "enum": list(known)}


EVENT = closed_object(
    {
        "name": names(),
        "server_uuid": UUID,
        "status": {**STRING, "enum": list(STATUSES)},
        "tag": {**STRING, "maxLength": 255},
    },
    ["name", "server_uuid"],
)
CREATE = closed_object({"events": {"type": "array", "minItems": 1, "items": EVENT}}, ["events"])
