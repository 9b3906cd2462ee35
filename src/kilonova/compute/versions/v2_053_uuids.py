"""Services and hypervisors have a uuid as id; one route updates a service; lists of hypervisors can be filtered."""

from kilonova.compute.hypervisors.model import ShownHypervisor
from kilonova.compute.hypervisors.views import numbered_service
from kilonova.compute.services.api import BY_UUID
from kilonova.compute.zones.model import ZonedService
from kilonova.http import Context
from kilonova.http.versions import Microversion, query, route, view

OLD_VERBS = ("enable", "disable", "disable-log-reason", "force-down")


def number(shown: ShownHypervisor | ZonedService, ctx: Context) -> int:
    return shown.id


version = Microversion(
    "2.53",
    __doc__,
    [
        BY_UUID,
        view("service", "hypervisor summary", "hypervisor").changes("id", before=number, schema={"type": "integer"}),
        view("hypervisor").changes("service", before=numbered_service, schema={"type": "object"}),
        route("PUT", "/os-services/{service_id}").begins(),
        # From here on the last part of the path is an id, and these words are no uuid.
        *(route("PUT", f"/os-services/{verb}").ends(status_above=400) for verb in OLD_VERBS),
        route("GET", "/os-hypervisors/{hypervisor_id}/search").ends(),
        route("GET", "/os-hypervisors/{hypervisor_id}/servers").ends(),
        query("GET /os-hypervisors").gains("hypervisor_hostname_pattern", "with_servers"),
        query("GET /os-hypervisors/detail").gains("hypervisor_hostname_pattern", "with_servers"),
        query("GET /os-hypervisors/{hypervisor_id}").gains("with_servers"),
        query("GET /os-hypervisors").closes(),
        query("GET /os-hypervisors/detail").closes(),
        query("GET /os-hypervisors/{hypervisor_id}").closes(),
    ],
)
