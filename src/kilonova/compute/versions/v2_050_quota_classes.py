"""Quota classes show the quotas of server groups, and no longer those of networking."""

from kilonova.compute.quotas.schemas import LIMIT, NETWORK_RESOURCES
from kilonova.http import col
from kilonova.http.versions import Microversion, request, view

UPDATE = "PUT /os-quota-class-sets/{name}"


version = Microversion(
    "2.50",
    __doc__,
    [
        view("quota class", "new quota class").gains("server_groups", "server_group_members"),
        *(request(UPDATE).loses(f"quota_class_set.{name}", schema=LIMIT) for name in NETWORK_RESOURCES),
        *(view("quota class", "new quota class").loses(name, value=col(name).value) for name in NETWORK_RESOURCES),
    ],
)
