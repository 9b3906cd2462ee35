"""The proxies for images, networks and volumes end, with the quotas and limits of networking."""

from kilonova.compute.quotas.schemas import LIMIT, NETWORK_RESOURCES
from kilonova.http import col
from kilonova.http.versions import Microversion, action, request, route, view

WHOLE = {"type": "integer"}
PROXIES = (
    ("GET", "/images"),
    ("GET", "/images/detail"),
    ("GET", "/images/{image_id}"),
    ("DELETE", "/images/{image_id}"),
    ("GET", "/os-volumes"),
    ("POST", "/os-volumes"),
    ("GET", "/os-volumes/detail"),
    ("GET", "/os-volumes/{volume_id}"),
    ("DELETE", "/os-volumes/{volume_id}"),
    ("GET", "/os-snapshots"),
    ("POST", "/os-snapshots"),
    ("GET", "/os-snapshots/detail"),
    ("GET", "/os-snapshots/{snapshot_id}"),
    ("DELETE", "/os-snapshots/{snapshot_id}"),
    ("GET", "/os-networks"),
    ("GET", "/os-networks/{id}"),
    ("GET", "/os-tenant-networks"),
    ("GET", "/os-tenant-networks/{id}"),
    ("GET", "/os-floating-ip-pools"),
    ("GET", "/os-floating-ips"),
    ("POST", "/os-floating-ips"),
    ("GET", "/os-floating-ips/{id}"),
    ("DELETE", "/os-floating-ips/{id}"),
    ("GET", "/os-security-groups"),
    ("POST", "/os-security-groups"),
    ("GET", "/os-security-groups/{id}"),
    ("PUT", "/os-security-groups/{id}"),
    ("DELETE", "/os-security-groups/{id}"),
    ("POST", "/os-security-group-rules"),
    ("DELETE", "/os-security-group-rules/{id}"),
    ("GET", "/os-baremetal-nodes"),
    ("POST", "/os-baremetal-nodes"),
    ("GET", "/os-baremetal-nodes/{id}"),
    ("DELETE", "/os-baremetal-nodes/{id}"),
)
NODE_ACTIONS = ("add_interface", "remove_interface")
UPDATE = "PUT /os-quota-sets/{project_id}"
MAXIMA = {
    "maxSecurityGroups": "security_groups",
    "maxSecurityGroupRules": "security_group_rules",
    "maxTotalFloatingIps": "floating_ips",
}

version = Microversion(
    "2.36",
    __doc__,
    [
        *(route(method, path).ends() for method, path in PROXIES),
        *(action(name, "/os-baremetal-nodes/{id}/action").ends() for name in NODE_ACTIONS),
        *(
            # Stored and shown, without effect: the network service has its own limits.
            request(UPDATE).loses(f"quota_set.{name}", schema=LIMIT)
            for name in NETWORK_RESOURCES
        ),
        *(
            view("quota set", "new quota set", "quota detail").loses(name, value=col(name).value)
            for name in NETWORK_RESOURCES
        ),
        *(view("limits").loses(key, value=col(name).value, schema=WHOLE) for key, name in MAXIMA.items()),
        view("limits").loses("totalSecurityGroupsUsed", "totalFloatingIpsUsed", value=lambda row, ctx: 0, schema=WHOLE),
    ],
)
