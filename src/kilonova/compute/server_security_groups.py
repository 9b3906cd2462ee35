"""Security groups of servers. The network service stores them; the API shows them in the form of nova-network."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from kilonova.compute.api import api
from kilonova.compute.operations.change_ports import AddSecurityGroup, RemoveSecurityGroup
from kilonova.compute.servers import model
from kilonova.compute.servers.operation_result import run_operation
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict, NotFound
from kilonova.http.parameter_types import Schema, closed_object
from kilonova.store import Row

RULE = "os_compute_api:os-security-groups:"
GROUP_NAME: Schema = closed_object({"name": {"type": "string", "minLength": 1, "maxLength": 255}}, ["name"])
Item = dict[str, Any]


@api.route("GET", "/servers/{server_id}/os-security-groups", checks=[RULE + "list"], query={})
async def index(ctx: Context, server_id: str) -> Response:
    """List the security groups of a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "list")
    ids = sorted({group_id for port in await _ports(ctx, server_id) for group_id in port["security_groups"]})
    if not ids:
        return Response({"security_groups": []})
    token = await ctx.services.identity.token()
    path = "/security-groups?" + urlencode([("id", group_id) for group_id in ids])
    found: list[Item] = (await ctx.services.network.request("GET", path, token))["security_groups"]
    known = await ctx.services.network.security_groups(row["project_id"], token)
    groups_by_id = {group["id"]: group for group in (*known, *found)}
    return Response({"security_groups": [group_view(group, groups_by_id) for group in found]})


@api.action("addSecurityGroup", body=GROUP_NAME, checks=[RULE + "add"], status=202)
async def add(ctx: Context, server_id: str) -> Response:
    """Add a security group to a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "add")
    group = await _group(ctx, row, ctx.body["addSecurityGroup"]["name"])
    return await run_operation(ctx, server_id, RULE + "add", AddSecurityGroup, _params(group))


@api.action("removeSecurityGroup", body=GROUP_NAME, checks=[RULE + "remove"], status=202)
async def remove(ctx: Context, server_id: str) -> Response:
    """Remove a security group from a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "remove")
    group = await _group(ctx, row, ctx.body["removeSecurityGroup"]["name"])
    if all(group["id"] not in port["security_groups"] for port in await _ports(ctx, server_id)):
        raise NotFound(f"Security group {group['name']} not associated with the instance {server_id}")
    return await run_operation(ctx, server_id, RULE + "remove", RemoveSecurityGroup, _params(group))


def _params(group: Item) -> dict[str, str]:
    return {"group": group["id"], "name": group["name"]}


async def _group(ctx: Context, row: Row, name: str) -> Item:
    """The group with this name or id that the caller can see."""
    known = await ctx.services.network.security_groups(row["project_id"], ctx.auth_token)
    found = [group for group in known if name in (group["name"], group["id"])]
    if not found:
        raise NotFound(f"Security group {name} not found for project {row['project_id']}.")
    if len(found) > 1:
        raise Conflict(f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
    return found[0]


async def _ports(ctx: Context, server_id: str) -> list[Item]:
    return await ctx.services.network.ports_of_device(server_id, await ctx.services.identity.token())


def group_view(found: Item, groups_by_id: dict[str, Item]) -> Item:
    """Shows ingress rules only. `groups_by_id` has the remote groups of rules."""
    incoming = [entry for entry in found["security_group_rules"] if entry["direction"] == "ingress"]
    return {
        "id": found["id"],
        "name": found["name"],
        "description": found["description"],
        "tenant_id": found["project_id"],
        "rules": [rule_view(entry, groups_by_id) for entry in incoming],
    }


def rule_view(found: Item, groups_by_id: dict[str, Item]) -> Item:
    remote = groups_by_id.get(found["remote_group_id"] or "")
    cidr = found["remote_ip_prefix"] or ("::/0" if found["ethertype"] == "IPv6" else "0.0.0.0/0")
    low, high = _port_range(found)
    return {
        "id": found["id"],
        "parent_group_id": found["security_group_id"],
        "ip_protocol": found["protocol"],
        "from_port": low,
        "to_port": high,
        "group": {"name": remote["name"], "tenant_id": remote["project_id"]} if remote else {},
        "ip_range": {} if found["remote_group_id"] else {"cidr": cidr},
    }


def _port_range(found: Item) -> tuple[int | None, int | None]:
    """The port range as numbers, also of a rule for all ports or all ICMP types."""
    low, high = found["port_range_min"], found["port_range_max"]
    if low is None and high is None and found["protocol"]:
        return (1, 65535) if found["protocol"] in ("tcp", "udp") else (-1, -1)
    return low, high
