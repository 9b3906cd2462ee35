"""The usage of projects is paged."""

from kilonova.compute.tenant_usage import PAGED
from kilonova.http.versions import Microversion, query

USAGE = "GET /os-simple-tenant-usage"

version = Microversion(
    "2.40",
    __doc__,
    [
        query(USAGE).gains("limit", "marker"),
        query(USAGE + "/{project_id}").gains("limit", "marker"),
        PAGED,
    ],
)
