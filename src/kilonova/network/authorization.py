"""Policy checks that the routes of all network resources share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.policy.network import RULES

if TYPE_CHECKING:
    from kilonova.network.networks.model import Network

_RULE_NAMES = frozenset(rule.name for rule in RULES)
_ANY_PROJECT: dict[str, object] = {}


def sees_all(ctx: Context, rule: str) -> bool:
    """Whether the rule allows the caller the resources of any project, as for administrators and services."""
    return ctx.may(rule, _ANY_PROJECT)


def requested_project(ctx: Context, body: Mapping[str, object]) -> str:
    """The project that a new resource will belong to."""
    given = {body[key] for key in ("project_id", "tenant_id") if key in body}
    if len(given) > 1:
        raise BadRequest("project_id and tenant_id name different projects.")
    project_id = given.pop() if given else ctx.token.project_id
    if not project_id:
        raise BadRequest("The token has no project scope, so the request must name a project: project_id is missing.")
    return str(project_id)


def policy_target(project_id: str, network: Network | None = None) -> dict[str, object]:
    """The target of a policy rule: a resource, and its network where it has one."""
    target: dict[str, object] = {"project_id": project_id, "tenant_id": project_id}
    if network is not None:
        target["network:project_id"] = target["network:tenant_id"] = network.project_id
        target["shared"] = network.shared
        target["router:external"] = network.external
    return target


def authorize_network_use(ctx: Context, project_id: str, network: Network) -> None:
    """Refuse ports on another project's external network: all projects see it, only its owner creates ports on it."""
    if network.project_id != project_id and not network.shared and not sees_all(ctx, "get_network"):
        raise Forbidden(f"Only the owner of the external network {network.id} can create ports on it.")


def authorize_attributes(
    ctx: Context,
    rule: str,
    body: Mapping[str, object],
    target: Mapping[str, object],
    defaults: Mapping[str, object] | None = None,
) -> None:
    """Check the rules of single attributes. An attribute that is set to its default needs no permission."""
    for name, value in body.items():
        attribute_rule = f"{rule}:{name}"
        if attribute_rule in _RULE_NAMES and not (defaults and name in defaults and defaults[name] == value):
            ctx.authorize(attribute_rule, target)
