"""Server groups may have a soft policy: `soft-affinity` or `soft-anti-affinity`."""

from kilonova.compute.server_groups.schemas import HARD, policies
from kilonova.http.versions import Microversion, request

version = Microversion(
    "2.15",
    __doc__,
    [request("POST /os-server-groups").changes("server_group.policies", before=policies(*HARD), required_before=True)],
)
