"""/v2.0/security-groups and /v2.0/security-group-rules."""

from __future__ import annotations

from typing import Any

from kilonova import store
from kilonova.http import Answer, Context
from kilonova.network import rows
from kilonova.network.access import CHANGED, project_for, sees_all, target_of, writing
from kilonova.network.api import api
from kilonova.network.errors import conflict, group_not_found, rule_not_found
from kilonova.network.groups import model, rules
from kilonova.network.groups.schema import CREATE, CREATE_RULE, UPDATE
from kilonova.network.listing import Attribute, Listing, Query, only
from kilonova.network.quotas.model import make_room
from kilonova.network.schema import SHOW_KEYS, truth
from kilonova.store import Reader, Row, Transaction

GROUPS = Listing(
    "security_groups",
    "security_groups r",
    {"name": Attribute("r.name"), "stateful": Attribute("r.stateful", "boolean")},
    {"shared": lambda query, values: query.add("1 = 0" if values[-1].lower() in ("true", "1") else "1 = 1")},
)
RULES = Listing(
    "security_group_rules",
    "security_group_rules r",
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


@api.route("GET", "/v2.0/security-groups", policy="get_security_group", query=GROUPS.keys)
async def index(ctx: Context) -> Answer:
    """List the project's security groups."""
    await _ensure_default(ctx, ctx.query_one("project_id") or ctx.query_one("tenant_id"))
    query = Query()
    if not sees_all(ctx, "get_security_group"):
        query.add(f"r.project_id = {query.arg(ctx.token.project_id)}")
    found = await GROUPS.rows(ctx, query)
    group_rules = await model.rules_of(ctx.db, [row["id"] for row in found])
    return Answer(GROUPS.answer(ctx, [model.view(row, group_rules[row["id"]]) for row in found]))


async def _ensure_default(ctx: Context, asked: str | None) -> None:
    """A project finds a default group the first time it looks."""
    project_id = ctx.token.project_id
    if not project_id or (asked and asked != project_id) or await model.default_id(ctx.db, project_id):
        return
    async with writing(ctx) as tx:
        await model.ensure_default(tx, project_id, ctx.now)


@api.route("GET", "/v2.0/security-groups/{security_group_id}", checks=["get_security_group"], query=SHOW_KEYS)
async def show(ctx: Context, security_group_id: str) -> Answer:
    """Show a security group with its rules."""
    row = await _load(ctx, ctx.db, security_group_id)
    group_rules = await model.rules_of(ctx.db, [security_group_id])
    return Answer({"security_group": only(ctx, model.view(row, group_rules[security_group_id]))})


async def _load(ctx: Context, reader: Reader, group_id: str) -> Row:
    row = await rows.get(reader, "security_groups", group_id)
    if row is None or not ctx.may("get_security_group", target_of(row["project_id"])):
        raise group_not_found(group_id)
    return row


@api.route("POST", "/v2.0/security-groups", checks=["create_security_group"], body=CREATE, status=201)
async def create(ctx: Context) -> Answer:
    """Create a security group, or several at once."""
    shown = []
    async with writing(ctx) as tx:
        for body in ctx.body.get("security_groups") or [ctx.body["security_group"]]:
            row = _draft(ctx, body)
            await model.ensure_default(tx, row["project_id"], ctx.now)
            await make_room(tx, row["project_id"], "security_group")
            shown.append(model.view(row, await model.create(tx, row)))
    return Answer({"security_groups": shown} if "security_groups" in ctx.body else {"security_group": shown[0]})


def _draft(ctx: Context, body: dict[str, Any]) -> Row:
    project_id = project_for(ctx, body)
    ctx.authorize("create_security_group", target_of(project_id))
    if body.get("name", "").lower() == model.DEFAULT:
        raise conflict("SecurityGroupDefaultAlreadyExists", "Default security group already exists.")
    return model.draft(project_id, body, ctx.now)


@api.route("PUT", "/v2.0/security-groups/{security_group_id}", checks=["update_security_group"], body=UPDATE)
async def update(ctx: Context, security_group_id: str) -> Answer:
    """Change a security group."""
    body = ctx.body["security_group"]
    async with writing(ctx) as tx:
        await _load(ctx, tx, security_group_id)
        row = await rows.lock(tx, "security_groups", security_group_id)
        if row is None:
            raise group_not_found(security_group_id)
        ctx.authorize("update_security_group", target_of(row["project_id"]))
        _check_name(row, body)
        changes = {name: truth(value) if name == "stateful" else value or "" for name, value in body.items()}
        row = await rows.update(tx, "security_groups", row, changes, ctx.now)
        group_rules = await model.rules_of(tx, [security_group_id])
    return Answer({"security_group": model.view(row, group_rules[security_group_id])})


def _check_name(row: Row, body: dict[str, Any]) -> None:
    renamed = "name" in body and body["name"] != row["name"]
    if renamed and row["is_default"]:
        raise conflict("SecurityGroupCannotUpdateDefault", "Updating default security group not allowed.")
    if renamed and body["name"].lower() == model.DEFAULT:
        raise conflict("SecurityGroupDefaultAlreadyExists", "Default security group already exists.")


@api.route("DELETE", "/v2.0/security-groups/{security_group_id}", checks=["delete_security_group"], status=204)
async def delete(ctx: Context, security_group_id: str) -> Answer:
    """Delete a security group that no port uses."""
    try:
        async with ctx.db.transaction() as tx:
            row = await _load(ctx, tx, security_group_id)
            ctx.authorize("delete_security_group", target_of(row["project_id"]))
            if row["is_default"] and not sees_all(ctx, "delete_security_group"):
                raise conflict(
                    "SecurityGroupCannotRemoveDefault", "Insufficient rights for removing default security group."
                )
            await model.remove(tx, security_group_id)
            tx.wake(CHANGED)
    except store.Conflict:
        raise model.group_in_use(security_group_id) from None
    return Answer()


@api.route("GET", "/v2.0/security-group-rules", policy="get_security_group_rule", query=RULES.keys)
async def index_rules(ctx: Context) -> Answer:
    """List the rules of the project's security groups."""
    await _ensure_default(ctx, ctx.query_one("project_id") or ctx.query_one("tenant_id"))
    query = Query()
    if not sees_all(ctx, "get_security_group_rule"):
        query.add(f"r.project_id = {query.arg(ctx.token.project_id)}")
    found = await RULES.rows(ctx, query)
    return Answer(RULES.answer(ctx, [rules.view(row) for row in found]))


@api.route(
    "GET", "/v2.0/security-group-rules/{security_group_rule_id}", checks=["get_security_group_rule"], query=SHOW_KEYS
)
async def show_rule(ctx: Context, security_group_rule_id: str) -> Answer:
    """Show a rule of a security group."""
    row = await _load_rule(ctx, ctx.db, security_group_rule_id)
    return Answer({"security_group_rule": only(ctx, rules.view(row))})


async def _load_rule(ctx: Context, reader: Reader, rule_id: str) -> Row:
    row = await rows.get(reader, "security_group_rules", rule_id)
    if row is None or not ctx.may("get_security_group_rule", target_of(row["project_id"])):
        raise rule_not_found(rule_id)
    return row


@api.route("POST", "/v2.0/security-group-rules", checks=["create_security_group_rule"], body=CREATE_RULE, status=201)
async def create_rule(ctx: Context) -> Answer:
    """Create a rule of a security group, or several at once."""
    async with writing(ctx) as tx:
        bodies = ctx.body.get("security_group_rules") or [ctx.body["security_group_rule"]]
        made = [await _make_rule(ctx, tx, body) for body in bodies]
    shown = [rules.view(row) for row in made]
    several = "security_group_rules" in ctx.body
    return Answer({"security_group_rules": shown} if several else {"security_group_rule": shown[0]})


async def _make_rule(ctx: Context, tx: Transaction, body: dict[str, Any]) -> Row:
    group = await _load(ctx, tx, body["security_group_id"])
    ctx.authorize("create_security_group_rule", target_of(group["project_id"]))
    if body.get("remote_group_id"):
        await _load(ctx, tx, body["remote_group_id"])
    row = rules.draft(group["project_id"], body, ctx.now)
    await tx.hold(f"rules of {group['id']}")
    same = await model.same_rule(tx, row)
    if same:
        raise conflict("SecurityGroupRuleExists", f"Security group rule already exists. Rule id is {same}.")
    await make_room(tx, group["project_id"], "security_group_rule")
    await rows.insert(tx, "security_group_rules", row)
    return row


@api.route(
    "DELETE",
    "/v2.0/security-group-rules/{security_group_rule_id}",
    checks=["delete_security_group_rule"],
    status=204,
)
async def delete_rule(ctx: Context, security_group_rule_id: str) -> Answer:
    """Delete a rule of a security group."""
    async with writing(ctx) as tx:
        row = await _load_rule(ctx, tx, security_group_rule_id)
        ctx.authorize("delete_security_group_rule", target_of(row["project_id"]))
        await rows.delete(tx, "security_group_rules", security_group_rule_id)
    return Answer()
