"""Network interfaces and block devices of a new server can be given a tag."""

from kilonova.compute.servers.schemas import network_list
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.32",
    __doc__,
    [
        request("POST /servers").changes("server.networks", before=network_list()),
        request("POST /servers").gains("server.block_device_mapping_v2[].tag"),
    ],
)
