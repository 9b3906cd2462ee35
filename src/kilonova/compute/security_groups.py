"""Proxy of security groups and their rules (before 2.36). Old clients call the network service with their own token."""

from __future__ import annotations

from collections.abc import Iterable

from kilonova.compute.api import api
from kilonova.compute.network_calls import Item, call, list_items, own_project_filter
from kilonova.compute.server_security_groups import group_view, rule_view
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import LIMIT, page_limit
from kilonova.http.parameter_types import STRING, UUID, Schema, is_true
from kilonova.ids import is_uuid

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


LIST: dict[str, Schema] = {"limit": LIMIT, "offset": LIMIT, "all_tenants": STRING, "*": {}}
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
    found = await list_items(ctx, "security-groups", **({} if all_projects else own_project_filter(ctx)))
    found.sort(key=lambda group: (group["project_id"], group["name"], group["id"]))
    start = int(ctx.query_one("offset") or 0)
    page = found[start : start + page_limit(ctx)]
    named = await _groups_by_id(ctx, page, found)
    return Response({"security_groups": [group_view(group, named) for group in page]})


@api.route("GET", GROUPS + "/{id}", policy=RULE + "show")
async def show(ctx: Context, id: str) -> Response:
    """Show a security group."""
    return await _answer(ctx, await call(ctx, "GET", _group(id)))


@api.route("POST", GROUPS, policy=RULE + "create", body=GROUP_BODY)
async def create(ctx: Context) -> Response:
    """Create a security group."""
    return await _answer(ctx, await call(ctx, "POST", "/security-groups", _request_body(ctx)))


@api.route("PUT", GROUPS + "/{id}", policy=RULE + "update", body=GROUP_BODY)
async def update(ctx: Context, id: str) -> Response:
    """Change the name or description of a security group."""
    return await _answer(ctx, await call(ctx, "PUT", _group(id), _request_body(ctx)))


@api.route("DELETE", GROUPS + "/{id}", policy=RULE + "delete", status=202)
async def delete(ctx: Context, id: str) -> Response:
    """Delete an unused security group."""
    await call(ctx, "DELETE", _group(id))
    return Response()


@api.route("POST", RULES, policy=RULE + "rule:create", body=RULE_BODY)
async def create_rule(ctx: Context) -> Response:
    """Create an ingress rule of a security group."""
    wanted = _rule(ctx.body["security_group_rule"])
    made = (await call(ctx, "POST", "/security-group-rules", {"security_group_rule": wanted}))["security_group_rule"]
    named = await _groups_by_id(ctx, [{"id": made["security_group_id"], "security_group_rules": [made]}])
    return Response({"security_group_rule": rule_view(made, named)})


@api.route("DELETE", RULES + "/{id}", policy=RULE + "rule:delete", status=202)
async def delete_rule(ctx: Context, id: str) -> Response:
    """Delete a rule of a security group."""
    await call(ctx, "DELETE", f"/security-group-rules/{_id(id)}")
    return Response()


def _id(text: str) -> str:
    if not is_uuid(text):
        raise BadRequest("Security group id should be uuid")
    return text


def _group(group_id: str) -> str:
    return f"/security-groups/{_id(group_id)}"


def _request_body(ctx: Context) -> Item:
    group = ctx.body["security_group"]
    return {"security_group": {"name": group["name"], "description": group["description"]}}


async def _answer(ctx: Context, body: Item) -> Response:
    group = body["security_group"]
    return Response({"security_group": group_view(group, await _groups_by_id(ctx, [group]))})


async def _groups_by_id(ctx: Context, groups: Iterable[Item], known: Iterable[Item] = ()) -> dict[str, Item]:
    """The groups by id, with the remote groups of their rules that the caller can see."""
    by_id = {group["id"]: group for group in (*known, *groups) if "name" in group}
    remote = {rule["remote_group_id"] for group in groups for rule in group["security_group_rules"]}
    missing = sorted(remote - by_id.keys() - {None})
    found = await ctx.services.network.groups(missing, ctx.auth_token)
    return {**by_id, **{group["id"]: group for group in found}}


def _rule(requested: Item) -> Item:
    """The rule as the network service expects it. Without a CIDR or group the rule is for all IPv4 addresses."""
    protocol = None if requested.get("ip_protocol") is None else str(requested["ip_protocol"]).lower()
    ports = [None if requested.get(key) is None else int(requested[key]) for key in ("from_port", "to_port")]
    if not requested.get("group_id") and (protocol is None or None in ports):
        raise BadRequest("Not enough parameters to build a valid rule.")
    if protocol in ("icmp", "1"):
        ports = [None if port == -1 else port for port in ports]
    elif -1 in ports:
        raise BadRequest(f"Invalid port range {ports[0]}:{ports[1]}. Valid ports should be between 1-65535")
    cidr = None if requested.get("group_id") else requested.get("cidr") or "0.0.0.0/0"
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
