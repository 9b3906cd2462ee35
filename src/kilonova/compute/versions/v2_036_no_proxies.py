"""Images, networks and volumes are asked of their own services; quotas and limits of networking leave with them."""

from typing import Any

from kilonova.compute.quotas.schemas import LIMIT, NETWORK_RESOURCES
from kilonova.http import col
from kilonova.http.versions import Microversion, request, view

WHOLE = {"type": "integer"}
UPDATE = "PUT /os-quota-sets/{project_id}"


def without_network(body: dict[str, Any]) -> dict[str, Any]:
    """The network service has these limits; setting them here never did anything."""
    kept = {name: limit for name, limit in body["quota_set"].items() if name not in NETWORK_RESOURCES}
    return {"quota_set": kept}


version = Microversion(
    "2.36",
    __doc__,
    [
        *(
            request(UPDATE).loses(f"quota_set.{name}", schema=LIMIT, upgrade=without_network)
            for name in NETWORK_RESOURCES
        ),
        *(
            view("quota set", "new quota set", "quota detail").loses(name, value=col(name).value)
            for name in NETWORK_RESOURCES
        ),
        view("limits").loses(
            "maxSecurityGroups", "maxSecurityGroupRules", "maxTotalFloatingIps", value=lambda row, ctx: -1, schema=WHOLE
        ),
        view("limits").loses("totalSecurityGroupsUsed", "totalFloatingIpsUsed", value=lambda row, ctx: 0, schema=WHOLE),
    ],
)
