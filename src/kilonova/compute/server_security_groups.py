"""Security groups of servers. The network service stores them; the API shows them in the form of nova-network."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova.compute.api import api
from kilonova.compute.operations.change_ports import AddSecurityGroup, GroupParams, RemoveSecurityGroup
from kilonova.compute.servers import model
from kilonova.compute.servers.operation_result import run_operation
from kilonova.compute.servers.server import Server
from kilonova.http import Context, Response
from kilonova.http.errors import Conflict, NotFound
from kilonova.http.parameter_types import Schema, closed_object
from kilonova.network.client import Port, SecurityGroup, SecurityGroupRule

RULE = "os_compute_api:os-security-groups:"
GROUP_NAME: Schema = closed_object({"name": {"type": "string", "minLength": 1, "maxLength": 255}}, ["name"])


@api.route("GET", "/servers/{server_id}/os-security-groups", checks=[RULE + "list"], query={})
async def index(ctx: Context, server_id: str) -> Response:
    """List the security groups of a server."""
    server = await model.find(ctx, ctx.db, server_id, rule=RULE + "list")
    ids = sorted({group_id for port in await _ports(ctx, server) for group_id in port.security_groups})
    if not ids:
        return Response({"security_groups": []})
    token = await ctx.services.identity.token()
    found = await ctx.services.network.groups(ids, token)
    known = await ctx.services.network.security_groups(server.project_id, token)
    groups_by_id = {group.id: group for group in (*known, *found)}
    return Response({"security_groups": [group_view(group, groups_by_id) for group in found]})


@api.action("addSecurityGroup", body=GROUP_NAME, checks=[RULE + "add"], status=202)
async def add(ctx: Context, server_id: str) -> Response:
    """Add a security group to a server."""
    server = await model.find(ctx, ctx.db, server_id, rule=RULE + "add")
    group = await _group(ctx, server, ctx.body["addSecurityGroup"]["name"])
    return await run_operation(ctx, server_id, RULE + "add", AddSecurityGroup, GroupParams(group.id, group.name))


@api.action("removeSecurityGroup", body=GROUP_NAME, checks=[RULE + "remove"], status=202)
async def remove(ctx: Context, server_id: str) -> Response:
    """Remove a security group from a server."""
    server = await model.find(ctx, ctx.db, server_id, rule=RULE + "remove")
    group = await _group(ctx, server, ctx.body["removeSecurityGroup"]["name"])
    if all(group.id not in port.security_groups for port in await _ports(ctx, server)):
        raise NotFound(f"Security group {group.name} not associated with the instance {server_id}")
    return await run_operation(ctx, server_id, RULE + "remove", RemoveSecurityGroup, GroupParams(group.id, group.name))


async def _group(ctx: Context, server: Server, name: str) -> SecurityGroup:
    """The group with this name or id that the caller can see."""
    known = await ctx.services.network.security_groups(server.project_id, ctx.auth_token)
    found = [group for group in known if name in (group.name, group.id)]
    if not found:
        raise NotFound(f"Security group {name} not found for project {server.project_id}.")
    if len(found) > 1:
        raise Conflict(f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
    return found[0]


async def _ports(ctx: Context, server: Server) -> list[Port]:
    return await ctx.services.network.ports_of_device(server.id, server.project_id, await ctx.services.identity.token())


def group_view(group: SecurityGroup, groups_by_id: Mapping[str, SecurityGroup]) -> dict[str, object]:
    """Shows ingress rules only. `groups_by_id` has the remote groups of rules."""
    return {
        "id": group.id,
        "name": group.name,
        "description": group.description,
        "tenant_id": group.project_id,
        "rules": [rule_view(rule, groups_by_id) for rule in group.rules if rule.direction == "ingress"],
    }


def rule_view(rule: SecurityGroupRule, groups_by_id: Mapping[str, SecurityGroup]) -> dict[str, object]:
    remote = groups_by_id.get(rule.remote_group_id or "")
    cidr = rule.remote_ip_prefix or ("::/0" if rule.ethertype == "IPv6" else "0.0.0.0/0")
    low, high = _port_range(rule)
    return {
        "id": rule.id,
        "parent_group_id": rule.security_group_id,
        "ip_protocol": rule.protocol,
        "from_port": low,
        "to_port": high,
        "group": {"name": remote.name, "tenant_id": remote.project_id} if remote else {},
        "ip_range": {} if rule.remote_group_id else {"cidr": cidr},
    }


def _port_range(rule: SecurityGroupRule) -> tuple[int | None, int | None]:
    """The port range as numbers, also of a rule for all ports or all ICMP types."""
    low, high = rule.port_range_min, rule.port_range_max
    if low is None and high is None and rule.protocol:
        return (1, 65535) if rule.protocol in ("tcp", "udp") else (-1, -1)
    return low, high
