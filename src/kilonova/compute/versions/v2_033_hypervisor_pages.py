"""Lists of hypervisors come in pages."""

from kilonova.compute.hypervisors.api import PAGED
from kilonova.http.versions import Microversion, behaviour, query

version = Microversion(
    "2.33",
    __doc__,
    [
        query("GET /os-hypervisors").gains("limit", "marker"),
        query("GET /os-hypervisors/detail").gains("limit", "marker"),
        behaviour(PAGED),
    ],
)
