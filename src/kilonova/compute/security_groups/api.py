"""Routes of security groups: the old ways to the network service, asked in the caller's name."""

from __future__ import annotations

from collections.abc import Iterable

from kilonova.compute.api import api
from kilonova.compute.networks.asking import Item, ask, listed, own
from kilonova.compute.security_groups import schemas
from kilonova.compute.server_security_groups import views
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import limit_of
from kilonova.http.pieces import is_true
from kilonova.ids import is_uuid

RULE = "os_compute_api:os-security-groups:"
GROUPS, RULES = "/os-security-groups", "/os-security-group-rules"


@api.route("GET", GROUPS, policy=RULE + "get", query=schemas.LIST)
async def index(ctx: Context) -> Answer:
    """List the project's security groups; administrators may ask for those of all projects."""
    everywhere = is_true(ctx.query_one("all_tenants") or "0")
    found = await listed(ctx, "security-groups", **({} if everywhere else own(ctx)))
    found.sort(key=lambda group: (group["project_id"], group["name"], group["id"]))
    start = int(ctx.query_one("offset") or 0)
    page = found[start : start + limit_of(ctx)]
    named = await _named(ctx, page, found)
    return Answer({"security_groups": [views.group(group, named) for group in page]})


@api.route("GET", GROUPS + "/{id}", policy=RULE + "show")
async def show(ctx: Context, id: str) -> Answer:
    """Show a security group."""
    return await _answer(ctx, await ask(ctx, "GET", _group(id)))


@api.route("POST", GROUPS, policy=RULE + "create", body=schemas.GROUP)
async def create(ctx: Context) -> Answer:
    """Create a security group."""
    return await _answer(ctx, await ask(ctx, "POST", "/security-groups", _asked(ctx)))


@api.route("PUT", GROUPS + "/{id}", policy=RULE + "update", body=schemas.GROUP)
async def update(ctx: Context, id: str) -> Answer:
    """Rename a security group, or describe it anew."""
    return await _answer(ctx, await ask(ctx, "PUT", _group(id), _asked(ctx)))


@api.route("DELETE", GROUPS + "/{id}", policy=RULE + "delete", status=202)
async def delete(ctx: Context, id: str) -> Answer:
    """Delete a security group that nothing uses."""
    await ask(ctx, "DELETE", _group(id))
    return Answer()


@api.route("POST", RULES, policy=RULE + "rule:create", body=schemas.RULE)
async def create_rule(ctx: Context) -> Answer:
    """Create a rule of a security group, for what comes in."""
    wanted = _rule(ctx.body["security_group_rule"])
    made = (await ask(ctx, "POST", "/security-group-rules", {"security_group_rule": wanted}))["security_group_rule"]
    named = await _named(ctx, [{"id": made["security_group_id"], "security_group_rules": [made]}])
    return Answer({"security_group_rule": views.rule(made, named)})


@api.route("DELETE", RULES + "/{id}", policy=RULE + "rule:delete", status=202)
async def delete_rule(ctx: Context, id: str) -> Answer:
    """Delete a rule of a security group."""
    await ask(ctx, "DELETE", f"/security-group-rules/{_id(id)}")
    return Answer()


def _id(text: str) -> str:
    if not is_uuid(text):
        raise BadRequest("Security group id should be uuid")
    return text


def _group(group_id: str) -> str:
    return f"/security-groups/{_id(group_id)}"


def _asked(ctx: Context) -> Item:
    asked = ctx.body["security_group"]
    return {"security_group": {"name": asked["name"], "description": asked["description"]}}


async def _answer(ctx: Context, told: Item) -> Answer:
    group = told["security_group"]
    return Answer({"security_group": views.group(group, await _named(ctx, [group]))})


async def _named(ctx: Context, groups: Iterable[Item], known: Iterable[Item] = ()) -> dict[str, Item]:
    """The groups that the rules of these speak of, as far as the caller sees them."""
    named = {group["id"]: group for group in (*known, *groups) if "name" in group}
    spoken = {rule["remote_group_id"] for group in groups for rule in group["security_group_rules"]}
    missing = sorted(spoken - named.keys() - {None})
    found = await ctx.services.network.groups(missing, ctx.auth_token)
    return {**named, **{group["id"]: group for group in found}}


def _rule(asked: Item) -> Item:
    """The rule in the words of the network service. Every address is meant where none is said, but not everything."""
    protocol = None if asked.get("ip_protocol") is None else str(asked["ip_protocol"]).lower()
    ports = [None if asked.get(key) is None else int(asked[key]) for key in ("from_port", "to_port")]
    if not asked.get("group_id") and (protocol is None or None in ports):
        raise BadRequest("Not enough parameters to build a valid rule.")
    if protocol in ("icmp", "1"):
        ports = [None if port == -1 else port for port in ports]
    elif -1 in ports:
        raise BadRequest(f"Invalid port range {ports[0]}:{ports[1]}. Valid ports should be between 1-65535")
    cidr = None if asked.get("group_id") else asked.get("cidr") or "0.0.0.0/0"
    return {
        "security_group_id": asked["parent_group_id"],
        "direction": "ingress",
        "ethertype": "IPv6" if cidr and ":" in cidr else "IPv4",
        "protocol": protocol,
        "port_range_min": ports[0],
        "port_range_max": ports[1],
        "remote_ip_prefix": cidr,
        "remote_group_id": asked.get("group_id"),
    }
