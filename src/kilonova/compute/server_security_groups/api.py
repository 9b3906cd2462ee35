"""The security groups of a server: listed, added and removed."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from kilonova.compute.api import api
from kilonova.compute.operations.change_groups import AddGroup, RemoveGroup
from kilonova.compute.server_security_groups import views
from kilonova.compute.servers import acting, awaiting, model
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, Conflict, NotFound
from kilonova.http.pieces import Schema, closed
from kilonova.operations import Operation
from kilonova.operations.errors import Failed
from kilonova.store import Row

RULE = "os_compute_api:os-security-groups:"
NAMED: Schema = closed({"name": {"type": "string", "minLength": 1, "maxLength": 255}}, ["name"])
# How long who asks for a change is kept waiting while something else happens to the server.
PATIENCE = 10.0
Item = dict[str, Any]


@api.route("GET", "/servers/{server_id}/os-security-groups", checks=[RULE + "list"], query={})
async def index(ctx: Context, server_id: str) -> Answer:
    """List the security groups of a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "list")
    ids = sorted({group_id for port in await _ports(ctx, server_id) for group_id in port["security_groups"]})
    if not ids:
        return Answer({"security_groups": []})
    token = await ctx.services.identity.token()
    path = "/security-groups?" + urlencode([("id", group_id) for group_id in ids])
    found: list[Item] = (await ctx.services.network.request("GET", path, token))["security_groups"]
    known = await ctx.services.network.security_groups(row["project_id"], token)
    named = {group["id"]: group for group in (*known, *found)}
    return Answer({"security_groups": [views.group(group, named) for group in found]})


@api.action("addSecurityGroup", body=NAMED, checks=[RULE + "add"], status=202)
async def add(ctx: Context, server_id: str) -> Answer:
    """Add a security group to a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "add")
    group = await _group(ctx, row, ctx.body["addSecurityGroup"]["name"])
    return await _change(ctx, server_id, "add", AddGroup, group)


@api.action("removeSecurityGroup", body=NAMED, checks=[RULE + "remove"], status=202)
async def remove(ctx: Context, server_id: str) -> Answer:
    """Remove a security group from a server."""
    row = await model.find(ctx, ctx.db, server_id, rule=RULE + "remove")
    group = await _group(ctx, row, ctx.body["removeSecurityGroup"]["name"])
    if all(group["id"] not in port["security_groups"] for port in await _ports(ctx, server_id)):
        raise NotFound(f"Security group {group['name']} not associated with the instance {server_id}")
    return await _change(ctx, server_id, "remove", RemoveGroup, group)


async def _change(ctx: Context, server_id: str, rule: str, operation: type[Operation], group: Item) -> Answer:
    async with ctx.db.transaction() as tx:
        row = await model.find(ctx, tx, server_id, rule=RULE + rule, lock=True)
        acting.check_unlocked(ctx, row)
        params = {"group": group["id"], "name": group["name"]}
        operation_id = await acting.start(ctx, tx, row, operation, params)
    try:
        await awaiting.outcome(ctx, operation_id, PATIENCE)
    except Failed as failure:
        raise BadRequest(str(failure)) from None
    return Answer()


async def _group(ctx: Context, row: Row, name: str) -> Item:
    """The group of this name or id, as the caller sees it."""
    known = await ctx.services.network.security_groups(row["project_id"], ctx.auth_token)
    found = [group for group in known if name in (group["name"], group["id"])]
    if not found:
        raise NotFound(f"Security group {name} not found for project {row['project_id']}.")
    if len(found) > 1:
        raise Conflict(f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
    return found[0]


async def _ports(ctx: Context, server_id: str) -> list[Item]:
    return await ctx.services.network.ports_of(server_id, await ctx.services.identity.token())
