"""Hypervisors show their uptime, and no longer amounts, which placement has."""

from kilonova.compute.hypervisors.api import NO_AMOUNTS
from kilonova.compute.hypervisors.model import AMOUNTS
from kilonova.http import col
from kilonova.http.versions import Microversion, behaviour, route, view

version = Microversion(
    "2.88",
    __doc__,
    [
        view("hypervisor").gains("uptime"),
        view("hypervisor").loses("cpu_info", value=col("cpu_info").value, schema={"type": "object"}),
        *(view("hypervisor").loses(name, value=col(name).value, schema={"type": "integer"}) for name in AMOUNTS),
        behaviour(NO_AMOUNTS),
        route("GET", "/os-hypervisors/statistics").ends(),
        route("GET", "/os-hypervisors/{hypervisor_id}/uptime").ends(),
    ],
)
