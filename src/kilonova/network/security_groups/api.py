"""Routes of security groups and their rules."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova import store
from kilonova.http import Context, Response
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import policy_target, requested_project, sees_all
from kilonova.network.errors import conflict, group_not_found, rule_not_found
from kilonova.network.listing import Attribute, Listing, select_fields
from kilonova.network.quotas import check_quota
from kilonova.network.resources import CHANGES_CHANNEL, write_transaction
from kilonova.network.schemas import SHOW_QUERY, to_bool
from kilonova.network.security_groups import model, rules
from kilonova.network.security_groups.model import SecurityGroup
from kilonova.network.security_groups.rules import SecurityGroupRule
from kilonova.network.security_groups.schemas import CREATE, CREATE_RULE, UPDATE
from kilonova.network.security_groups.views import group_view, rule_view
from kilonova.store import Reader, Transaction

GROUPS = Listing(
    SecurityGroup,
    "security_groups",
    {"name": Attribute("r.name"), "stateful": Attribute("r.stateful", "boolean")},
    {"shared": lambda query, values: query.add("1 = 0" if values[-1].lower() in ("true", "1") else "1 = 1")},
)
RULES = Listing(
    SecurityGroupRule,
    "security_group_rules",
    {
        "security_group_id": Attribute("r.security_group_id"),
        "remote_group_id": Attribute("r.remote_group_id", nullable=True),
        "direction": Attribute("r.direction"),
        "ethertype": Attribute("r.ethertype"),
        "protocol": Attribute("r.protocol", nullable=True),
        "port_range_min": Attribute("r.port_range_min", "integer", nullable=True),
        "port_range_max": Attribute("r.port_range_max", "integer", nullable=True),
        "remote_ip_prefix": Attribute("r.remote_ip_prefix", nullable=True),
    },
)


@api.route("GET", "/v2.0/security-groups", policy="get_security_group", query=GROUPS.query_schema)
async def index(ctx: Context) -> Response:
    """List the project's security groups."""
    await _ensure_default(ctx, ctx.query_one("project_id") or ctx.query_one("tenant_id"))
    found = await GROUPS.fetch_own_page(ctx, "get_security_group")
    group_rules = await model.rules_of(ctx.db, [group.id for group in found])
    return Response(await GROUPS.response_body(ctx, (group_view(group, group_rules[group.id]) for group in found)))


async def _ensure_default(ctx: Context, filter_project: str | None) -> None:
    """Create the default group when a project lists its groups for the first time."""
    project_id = ctx.token.project_id
    if (
        not project_id
        or (filter_project and filter_project != project_id)
        or await model.default_group_id(ctx.db, project_id)
    ):
        return
    async with write_transaction(ctx) as tx:
        await model.ensure_default(tx, project_id, ctx.now)


@api.route("GET", "/v2.0/security-groups/{security_group_id}", checks=["get_security_group"], query=SHOW_QUERY)
async def show(ctx: Context, security_group_id: str) -> Response:
    """Show a security group with its rules."""
    group = await _load(ctx, ctx.db, security_group_id)
    group_rules = await model.rules_of(ctx.db, [security_group_id])
    return Response({"security_group": select_fields(ctx, group_view(group, group_rules[security_group_id]))})


async def _load(ctx: Context, reader: Reader, group_id: str) -> SecurityGroup:
    group = await resources.find(reader, SecurityGroup, group_id)
    if group is None or not ctx.may("get_security_group", policy_target(group.project_id)):
        raise group_not_found(group_id)
    return group


@api.route("POST", "/v2.0/security-groups", checks=["create_security_group"], body=CREATE, status=201)
async def create(ctx: Context) -> Response:
    """Create one or several security groups."""
    shown = []
    async with write_transaction(ctx) as tx:
        for body in ctx.body.get("security_groups") or [ctx.body["security_group"]]:
            group = _new_group(ctx, body)
            await model.ensure_default(tx, group.project_id, ctx.now)
            await check_quota(tx, group.project_id, "security_group")
            shown.append(group_view(group, await model.create(tx, group)))
    return Response({"security_groups": shown} if "security_groups" in ctx.body else {"security_group": shown[0]})


def _new_group(ctx: Context, body: Mapping[str, str]) -> SecurityGroup:
    project_id = requested_project(ctx, body)
    ctx.authorize("create_security_group", policy_target(project_id))
    if body.get("name", "").lower() == model.DEFAULT_NAME:
        raise conflict("SecurityGroupDefaultAlreadyExists", "Default security group already exists.")
    return model.new_group(project_id, body, ctx.now)


@api.route("PUT", "/v2.0/security-groups/{security_group_id}", checks=["update_security_group"], body=UPDATE)
async def update(ctx: Context, security_group_id: str) -> Response:
    """Change a security group."""
    body = ctx.body["security_group"]
    async with write_transaction(ctx) as tx:
        await _load(ctx, tx, security_group_id)
        group = await resources.lock(tx, SecurityGroup, security_group_id)
        if group is None:
            raise group_not_found(security_group_id)
        ctx.authorize("update_security_group", policy_target(group.project_id))
        _check_name(group, body)
        changes = {name: to_bool(value) if name == "stateful" else value or "" for name, value in body.items()}
        group = await resources.update(tx, group, changes, ctx.now)
        group_rules = await model.rules_of(tx, [security_group_id])
    return Response({"security_group": group_view(group, group_rules[security_group_id])})


def _check_name(group: SecurityGroup, body: Mapping[str, str]) -> None:
    renamed = "name" in body and body["name"] != group.name
    if renamed and group.is_default:
        raise conflict("SecurityGroupCannotUpdateDefault", "Updating default security group not allowed.")
    if renamed and body["name"].lower() == model.DEFAULT_NAME:
        raise conflict("SecurityGroupDefaultAlreadyExists", "Default security group already exists.")


@api.route("DELETE", "/v2.0/security-groups/{security_group_id}", checks=["delete_security_group"], status=204)
async def delete(ctx: Context, security_group_id: str) -> Response:
    """Delete a security group; refused while ports use it."""
    try:
        async with ctx.db.transaction() as tx:
            group = await _load(ctx, tx, security_group_id)
            ctx.authorize("delete_security_group", policy_target(group.project_id))
            if group.is_default and not sees_all(ctx, "delete_security_group"):
                raise conflict(
                    "SecurityGroupCannotRemoveDefault", "Insufficient rights for removing default security group."
                )
            await model.remove(tx, security_group_id)
            tx.notify(CHANGES_CHANNEL)
    except store.Conflict:
        raise model.group_in_use(security_group_id) from None
    return Response()


@api.route("GET", "/v2.0/security-group-rules", policy="get_security_group_rule", query=RULES.query_schema)
async def index_rules(ctx: Context) -> Response:
    """List the rules of the project's security groups."""
    await _ensure_default(ctx, ctx.query_one("project_id") or ctx.query_one("tenant_id"))
    found = await RULES.fetch_own_page(ctx, "get_security_group_rule")
    return Response(await RULES.response_body(ctx, (rule_view(rule) for rule in found)))


@api.route(
    "GET", "/v2.0/security-group-rules/{security_group_rule_id}", checks=["get_security_group_rule"], query=SHOW_QUERY
)
async def show_rule(ctx: Context, security_group_rule_id: str) -> Response:
    """Show a security group rule."""
    rule = await _load_rule(ctx, ctx.db, security_group_rule_id)
    return Response({"security_group_rule": select_fields(ctx, rule_view(rule))})


async def _load_rule(ctx: Context, reader: Reader, rule_id: str) -> SecurityGroupRule:
    rule = await resources.find(reader, SecurityGroupRule, rule_id)
    if rule is None or not ctx.may("get_security_group_rule", policy_target(rule.project_id)):
        raise rule_not_found(rule_id)
    return rule


@api.route("POST", "/v2.0/security-group-rules", checks=["create_security_group_rule"], body=CREATE_RULE, status=201)
async def create_rule(ctx: Context) -> Response:
    """Create one or several security group rules."""
    async with write_transaction(ctx) as tx:
        bodies = ctx.body.get("security_group_rules") or [ctx.body["security_group_rule"]]
        created = [await _create_rule(ctx, tx, body) for body in bodies]
    shown = [rule_view(rule) for rule in created]
    several = "security_group_rules" in ctx.body
    return Response({"security_group_rules": shown} if several else {"security_group_rule": shown[0]})


async def _create_rule(ctx: Context, tx: Transaction, body: Mapping[str, str]) -> SecurityGroupRule:
    group = await _load(ctx, tx, body["security_group_id"])
    ctx.authorize("create_security_group_rule", policy_target(group.project_id))
    if body.get("remote_group_id"):
        await _load(ctx, tx, body["remote_group_id"])
    rule = rules.new_rule(group.project_id, body, ctx.now)
    await tx.lock(f"rules of {group.id}")
    same = await model.find_equal_rule(tx, rule)
    if same:
        raise conflict("SecurityGroupRuleExists", f"Security group rule already exists. Rule id is {same}.")
    await check_quota(tx, group.project_id, "security_group_rule")
    await resources.insert(tx, rule)
    return rule


@api.route(
    "DELETE", "/v2.0/security-group-rules/{security_group_rule_id}", checks=["delete_security_group_rule"], status=204
)
async def delete_rule(ctx: Context, security_group_rule_id: str) -> Response:
    """Delete a security group rule."""
    async with write_transaction(ctx) as tx:
        rule = await _load_rule(ctx, tx, security_group_rule_id)
        ctx.authorize("delete_security_group_rule", policy_target(rule.project_id))
        await resources.delete(tx, SecurityGroupRule, security_group_rule_id)
    return Response()
