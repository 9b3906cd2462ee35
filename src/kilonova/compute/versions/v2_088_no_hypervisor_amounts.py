"""Hypervisors show their uptime, and no longer amounts, which placement has."""

from kilonova.compute.hypervisors.api import NO_AMOUNTS
from kilonova.compute.hypervisors.model import AMOUNTS
from kilonova.compute.hypervisors.views import column
from kilonova.http.versions import Microversion, route, view
from kilonova.http.views import Value


def _amount(name: str) -> Value:
    return lambda shown, ctx: getattr(shown.amounts, name)


version = Microversion(
    "2.88",
    __doc__,
    [
        view("hypervisor").gains("uptime"),
        view("hypervisor").loses("cpu_info", value=column("cpu_info"), schema={"type": "object"}),
        *(view("hypervisor").loses(name, value=_amount(name), schema={"type": "integer"}) for name in AMOUNTS),
        NO_AMOUNTS,
        route("GET", "/os-hypervisors/statistics").ends(),
        route("GET", "/os-hypervisors/{hypervisor_id}/uptime").ends(),
    ],
)
