"""A new server's `networks` are required: a list, `auto` or `none`. By mistake interfaces take no tag from here
to 2.41.
"""

from kilonova.compute.servers.requested_networks import NOT_REQUESTED
from kilonova.compute.servers.schemas import DEVICE_TAG, network_list
from kilonova.http.versions import Microversion, RequestBody, request


def set_default(body: RequestBody) -> RequestBody:
    body["server"].setdefault("networks", NOT_REQUESTED)
    return body


version = Microversion(
    "2.37",
    __doc__,
    [request("POST /servers").changes("server.networks", before=network_list(tag=DEVICE_TAG), upgrade=set_default)],
)
