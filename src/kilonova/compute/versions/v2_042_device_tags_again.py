"""Network interfaces and block devices of a new server take a tag again."""

from kilonova.compute.servers.schemas import networks
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.42",
    __doc__,
    [
        request("POST /servers").changes("server.networks", before=networks(), required_before=True),
        request("POST /servers").gains("server.block_device_mapping_v2[].tag"),
    ],
)
