"""Who may see and do what: owners, sharers, services and administrators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from kilonova import store
from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.network.errors import conflict
from kilonova.policy.network import RULES
from kilonova.store import Row, Transaction

# Woken by whatever may change what hosts have to have of networks.
CHANGED = "networks"
_RULES = frozenset(rule.name for rule in RULES)
_NOBODYS: dict[str, Any] = {}


def sees_all(ctx: Context, rule: str) -> bool:
    """Whether the rule lets the caller at resources of any project: administrators and services."""
    return ctx.may(rule, _NOBODYS)


def project_for(ctx: Context, body: dict[str, Any]) -> str:
    """The project that a new resource is to belong to."""
    given = {body[key] for key in ("project_id", "tenant_id") if key in body}
    if len(given) > 1:
        raise BadRequest("project_id and tenant_id name different projects.")
    project_id = given.pop() if given else ctx.token.project_id
    if not project_id:
        raise BadRequest("The token is of no project, so the request has to name one: project_id is missing.")
    return str(project_id)


@asynccontextmanager
async def writing(ctx: Context) -> AsyncIterator[Transaction]:
    """A transaction that loses to another which deleted what this one builds on: a conflict, not a fault."""
    try:
        async with ctx.db.transaction() as tx:
            yield tx
            tx.wake(CHANGED)
    except store.Conflict:
        raise conflict(
            "RetryRequest", "Something that the request builds on was changed just now; try again."
        ) from None


def target_of(project_id: str, network: Row | None = None) -> dict[str, Any]:
    """What rules are asked about: a resource, and the network it belongs to if any."""
    target: dict[str, Any] = {"project_id": project_id, "tenant_id": project_id}
    if network is not None:
        target["network:project_id"] = target["network:tenant_id"] = network["project_id"]
        target["shared"] = network["shared"]
        target["router:external"] = network["external"]
    return target


def authorize_use(ctx: Context, project_id: str, network: Row) -> None:
    """An external network is seen by all, but ports on it are for its owner to make."""
    if network["project_id"] != project_id and not network["shared"] and not sees_all(ctx, "get_network"):
        raise Forbidden(f"Ports on the external network {network['id']} are not for projects to create.")


def authorize_attributes(
    ctx: Context, rule: str, body: dict[str, Any], target: dict[str, Any], defaults: dict[str, Any] | None = None
) -> None:
    """Check the rules that single attributes have; asking for what is the default anyway needs no right."""
    for name, value in body.items():
        attribute_rule = f"{rule}:{name}"
        if attribute_rule in _RULES and not (defaults and name in defaults and defaults[name] == value):
            ctx.authorize(attribute_rule, target)
