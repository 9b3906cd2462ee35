"""Many lists refuse unknown query keys; a flavor without swap shows 0, a hypervisor without servers an empty list."""

from kilonova.compute.flavors.views import empty_for_zero
from kilonova.compute.hypervisors.views import SERVERS, servers_if_any
from kilonova.http.versions import Microversion, query, view

CLOSED = (
    "GET /flavors",
    "GET /flavors/detail",
    "GET /limits",
    "GET /os-keypairs",
    "GET /os-keypairs/{name}",
    "DELETE /os-keypairs/{name}",
    "GET /os-quota-sets/{project_id}",
    "GET /os-quota-sets/{project_id}/detail",
    "PUT /os-quota-sets/{project_id}",
    "DELETE /os-quota-sets/{project_id}",
    "GET /os-services",
)

version = Microversion(
    "2.75",
    __doc__,
    [
        *(query(target).closes() for target in CLOSED),
        view("flavor").changes("swap", before=empty_for_zero, schema={"type": ["integer", "string"]}),
        view("hypervisor summary", "hypervisor").changes(
            "servers", before=servers_if_any, schema=SERVERS, optional=True
        ),
    ],
)
