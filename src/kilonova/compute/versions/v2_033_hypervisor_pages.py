"""Lists of hypervisors are paged. By mistake block devices take no tag from here to 2.41."""

from kilonova.compute.block_devices.schemas import TAG
from kilonova.compute.hypervisors.api import PAGED
from kilonova.http.versions import Microversion, query, request

version = Microversion(
    "2.33",
    __doc__,
    [
        query("GET /os-hypervisors").gains("limit", "marker"),
        query("GET /os-hypervisors/detail").gains("limit", "marker"),
        PAGED,
        request("POST /servers").loses("server.block_device_mapping_v2[].tag", schema=TAG),
    ],
)
