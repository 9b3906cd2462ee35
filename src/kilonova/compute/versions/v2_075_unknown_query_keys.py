"""Many lists refuse unknown query keys; the responses to a server's update and rebuild have all fields of its view; a
flavor without swap shows 0, a hypervisor without servers an empty list.
"""

from kilonova.compute.flavors.views import swap_or_empty
from kilonova.compute.hypervisors.views import SERVERS, servers_if_any
from kilonova.compute.servers.views import (
    FIELDS,
    OBJECT,
    REBUILD_ALWAYS,
    REBUILD_FIELDS,
    UPDATE_ALWAYS,
    bare_addresses,
)
from kilonova.http.versions import Microversion, query, view

CLOSED = (
    "GET /flavors",
    "GET /flavors/detail",
    "GET /limits",
    "DELETE /os-assisted-volume-snapshots/{snapshot_id}",
    "GET /os-keypairs",
    "GET /os-keypairs/{name}",
    "DELETE /os-keypairs/{name}",
    "GET /os-quota-sets/{project_id}",
    "GET /os-quota-sets/{project_id}/detail",
    "PUT /os-quota-sets/{project_id}",
    "DELETE /os-quota-sets/{project_id}",
    "GET /os-server-groups",
    "GET /os-services",
    "GET /os-simple-tenant-usage",
    "GET /os-simple-tenant-usage/{project_id}",
    "GET /servers",
    "GET /servers/detail",
    "GET /servers/{server_id}/os-volume_attachments",
)

version = Microversion(
    "2.75",
    __doc__,
    [
        *(query(target).closes() for target in CLOSED),
        view("server update", "server rebuild").changes("addresses", before=bare_addresses, schema=OBJECT),
        view("server update").gains(*(name for name in FIELDS if name not in UPDATE_ALWAYS)),
        view("server rebuild").gains(*(name for name in REBUILD_FIELDS if name not in REBUILD_ALWAYS)),
        view("flavor").changes("swap", before=swap_or_empty, schema={"type": ["integer", "string"]}),
        view("hypervisor summary", "hypervisor").changes(
            "servers", before=servers_if_any, schema=SERVERS, optional=True
        ),
    ],
)
