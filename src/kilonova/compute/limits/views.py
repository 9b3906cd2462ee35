"""How the absolute limits are shown."""

from __future__ import annotations

from kilonova.compute.api import api
from kilonova.http import View, col

WHOLE = {"type": "integer"}
# The key of the view, and the resource whose limit it is.
MAXIMA = {
    "maxTotalInstances": "instances",
    "maxTotalCores": "cores",
    "maxTotalRAMSize": "ram",
    "maxServerMeta": "metadata_items",
    "maxTotalKeypairs": "key_pairs",
    "maxServerGroups": "server_groups",
    "maxServerGroupMembers": "server_group_members",
}
USED = {
    "totalInstancesUsed": "instances",
    "totalCoresUsed": "cores",
    "totalRAMUsed": "ram",
    "totalServerGroupsUsed": "server_groups",
}

api.view(
    View(
        "limits",
        {
            **{key: col(resource, WHOLE) for key, resource in MAXIMA.items()},
            **{key: col(f"{resource} used", WHOLE) for key, resource in USED.items()},
        },
    )
)
