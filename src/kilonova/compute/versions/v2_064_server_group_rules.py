"""A server group has one `policy`, which may have `rules`; `policies` and `metadata` end."""

from kilonova.compute.server_groups.model import SOFT
from kilonova.compute.server_groups.schemas import HARD, policies
from kilonova.compute.server_groups.views import policies as shown_policies
from kilonova.http.versions import Microversion, RequestBody, request, view


def policies_to_policy(body: RequestBody) -> RequestBody:
    group = body["server_group"]
    given = group.pop("policies")
    assert isinstance(given, list)
    group["policy"] = given[0]
    return body


version = Microversion(
    "2.64",
    __doc__,
    [
        request("POST /os-server-groups").gains("server_group.policy"),
        request("POST /os-server-groups").gains("server_group.rules"),
        request("POST /os-server-groups").loses(
            "server_group.policies", schema=policies(*HARD, *SOFT), required=True, upgrade=policies_to_policy
        ),
        view("server group").gains("policy", "rules"),
        view("server group").loses("policies", value=shown_policies, schema={"type": "array"}),
        view("server group").loses("metadata", value=lambda row, ctx: {}, schema={"type": "object"}),
    ],
)
