"""Proxy of security groups and their rules (before 2.36). Old clients call the network service with their own token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kilonova.compute.api import api
from kilonova.compute.network_calls import network_errors
from kilonova.compute.server_security_groups import group_view, rule_view
from kilonova.http import Context, Response, repeatable
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import LIMIT, page_limit
from kilonova.http.parameter_types import STRING, UUID, Schema, is_true
from kilonova.ids import is_uuid
from kilonova.network.client import SecurityGroup, SecurityGroupRule

TEXT: Schema = {**STRING, "maxLength": 255}
# -1 means every ICMP type or code.
PORT: Schema = {
    "anyOf": [
        {"type": "integer", "minimum": -1, "maximum": 65535},
        {"type": "string", "pattern": "^(-1|[0-9]{1,5})$"},
        {"type": "null"},
    ]
}


def _open(name: str, properties: Schema, required: list[str]) -> Schema:
    """Unknown keys are allowed: these routes were removed before the microversions that refuse them."""
    inner = {"type": "object", "properties": properties, "required": required}
    return {"type": "object", "properties": {name: inner}, "required": [name]}


LIST = repeatable({"limit": LIMIT, "offset": LIMIT, "all_tenants": STRING, "*": {}})
GROUP_BODY = _open("security_group", {"name": TEXT, "description": TEXT}, ["name", "description"])
RULE_BODY = _open(
    "security_group_rule",
    {
        "parent_group_id": UUID,
        "group_id": {"type": ["string", "null"], "format": "uuid"},
        "ip_protocol": {"type": ["string", "integer", "null"]},
        "from_port": PORT,
        "to_port": PORT,
        "cidr": {"type": ["string", "null"], "format": "cidr"},
    },
    ["parent_group_id"],
)


RULE = "os_compute_api:os-security-groups:"
GROUPS, RULES = "/os-security-groups", "/os-security-group-rules"


@api.route("GET", GROUPS, policy=RULE + "get", query=LIST)
async def index(ctx: Context) -> Response:
    """List the project's security groups; administrators may list those of all projects."""
    all_projects = is_true(ctx.query_one("all_tenants") or "0")
    found = await ctx.services.network.security_groups(None if all_projects else ctx.token.project_id, ctx.auth_token)
    found.sort(key=lambda group: (group.project_id, group.name, group.id))
    start = int(ctx.query_one("offset") or 0)
    page = found[start : start + page_limit(ctx)]
    named = await _groups_by_id(ctx, found, [rule for group in page for rule in group.rules])
    return Response({"security_groups": [group_view(group, named) for group in page]})


@api.route("GET", GROUPS + "/{id}", policy=RULE + "show")
async def show(ctx: Context, id: str) -> Response:
    """Show a security group."""
    with network_errors():
        found = await ctx.services.network.security_group(_id(id), ctx.auth_token)
    return await _answer(ctx, found)


@api.route("POST", GROUPS, policy=RULE + "create", body=GROUP_BODY)
async def create(ctx: Context) -> Response:
    """Create a security group."""
    with network_errors():
        created = await ctx.services.network.create_security_group(_attributes(ctx), ctx.auth_token)
    return await _answer(ctx, created)


@api.route("PUT", GROUPS + "/{id}", policy=RULE + "update", body=GROUP_BODY)
async def update(ctx: Context, id: str) -> Response:
    """Change the name or description of a security group."""
    with network_errors():
        changed = await ctx.services.network.update_security_group(_id(id), _attributes(ctx), ctx.auth_token)
    return await _answer(ctx, changed)


@api.route("DELETE", GROUPS + "/{id}", policy=RULE + "delete", status=202)
async def delete(ctx: Context, id: str) -> Response:
    """Delete an unused security group."""
    with network_errors():
        await ctx.services.network.delete_security_group(_id(id), ctx.auth_token)
    return Response()


@api.route("POST", RULES, policy=RULE + "rule:create", body=RULE_BODY)
async def create_rule(ctx: Context) -> Response:
    """Create an ingress rule of a security group."""
    wanted = _rule(ctx.body["security_group_rule"])
    with network_errors():
        created = await ctx.services.network.create_rule(wanted, ctx.auth_token)
    return Response({"security_group_rule": rule_view(created, await _groups_by_id(ctx, [], [created]))})


@api.route("DELETE", RULES + "/{id}", policy=RULE + "rule:delete", status=202)
async def delete_rule(ctx: Context, id: str) -> Response:
    """Delete a rule of a security group."""
    with network_errors():
        await ctx.services.network.delete_rule(_id(id), ctx.auth_token)
    return Response()


def _id(text: str) -> str:
    if not is_uuid(text):
        raise BadRequest("Security group id should be uuid")
    return text


def _attributes(ctx: Context) -> dict[str, str]:
    group = ctx.body["security_group"]
    return {"name": group["name"], "description": group["description"]}


async def _answer(ctx: Context, group: SecurityGroup) -> Response:
    return Response({"security_group": group_view(group, await _groups_by_id(ctx, [group], group.rules))})


async def _groups_by_id(
    ctx: Context, known: Iterable[SecurityGroup], rules: Iterable[SecurityGroupRule]
) -> dict[str, SecurityGroup]:
    """The known groups by id, and the remote groups of the rules that the caller can see."""
    by_id = {group.id: group for group in known}
    missing = {rule.remote_group_id for rule in rules if rule.remote_group_id} - by_id.keys()
    found = await ctx.services.network.groups(sorted(missing), ctx.auth_token)
    return {**by_id, **{group.id: group for group in found}}


def _number(value: str | int | None) -> int | None:
    return None if value is None else int(value)


def _rule(requested: Mapping[str, str | int | None]) -> dict[str, str | int | None]:
    """The rule as the network service expects it. Without a CIDR or group the rule is for all IPv4 addresses."""
    protocol = None if requested.get("ip_protocol") is None else str(requested["ip_protocol"]).lower()
    ports = [_number(requested.get(key)) for key in ("from_port", "to_port")]
    if not requested.get("group_id") and (protocol is None or None in ports):
        raise BadRequest("Not enough parameters to build a valid rule.")
    if protocol in ("icmp", "1"):
        ports = [None if port == -1 else port for port in ports]
    elif -1 in ports:
        raise BadRequest(f"Invalid port range {ports[0]}:{ports[1]}. Valid ports should be between 1-65535")
    cidr = None if requested.get("group_id") else str(requested.get("cidr") or "0.0.0.0/0")
    return {
        "security_group_id": requested["parent_group_id"],
        "direction": "ingress",
        "ethertype": "IPv6" if cidr and ":" in cidr else "IPv4",
        "protocol": protocol,
        "port_range_min": ports[0],
        "port_range_max": ports[1],
        "remote_ip_prefix": cidr,
        "remote_group_id": requested.get("group_id"),
    }
