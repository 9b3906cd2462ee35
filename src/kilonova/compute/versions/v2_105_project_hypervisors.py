"""Administrators and managers of a project list the hypervisors that are assigned to it, with only `id`, `state` and
`status`, and boot on one of them by `hypervisor_uuid`. A new server's `availability_zone` is only the name of a zone:
with a host, or unknown, it is 404. Migrations show why they failed.
"""

from kilonova.compute.hypervisors.assigned import ASSIGNED_ONLY
from kilonova.compute.hypervisors.views import column, service
from kilonova.compute.servers.requested_destination import ZONE_ONLY
from kilonova.compute.services.views import TEXT
from kilonova.http.versions import Microversion, request, view

HYPERVISORS = view("hypervisor summary", "hypervisor")
DETAILS = view("hypervisor")

version = Microversion(
    "2.105",
    __doc__,
    [
        ASSIGNED_ONLY,
        HYPERVISORS.changes("hypervisor_hostname", before=column("hypervisor_hostname"), schema=TEXT),
        DETAILS.changes("service", before=service, schema={"type": "object"}),
        DETAILS.changes("host_ip", before=column("host_ip"), schema=TEXT),
        DETAILS.changes("hypervisor_type", before=column("hypervisor_type"), schema=TEXT),
        DETAILS.changes("hypervisor_version", before=column("hypervisor_version"), schema={"type": "integer"}),
        request("POST /servers").gains("server.hypervisor_uuid"),
        ZONE_ONLY,
        view("migration").gains("reason"),
    ],
)
