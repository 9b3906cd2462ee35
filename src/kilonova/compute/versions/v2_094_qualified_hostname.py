"""A server's host name can be fully qualified."""

from kilonova.compute.servers.schemas import HOST_LABEL
from kilonova.http.versions import Microversion, action, request

version = Microversion(
    "2.94",
    __doc__,
    [
        request("POST /servers").changes("server.hostname", before=HOST_LABEL),
        request("PUT /servers/{server_id}").changes("server.hostname", before=HOST_LABEL),
        action("rebuild").changes("hostname", before=HOST_LABEL),
    ],
)
