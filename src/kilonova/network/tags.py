"""Routes of tags (/v2.0/{resource}/{id}/tags), the same for every kind of resource."""

from __future__ import annotations

from collections.abc import Callable

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.network import resources
from kilonova.network.api import api
from kilonova.network.authorization import policy_target
from kilonova.network.errors import (
    floating_ip_not_found,
    group_not_found,
    invalid,
    network_not_found,
    port_not_found,
    router_not_found,
    subnet_not_found,
)
from kilonova.network.floating_ips.model import FloatingIp
from kilonova.network.networks.model import Network
from kilonova.network.ports.model import Port
from kilonova.network.resources import Resource, write_transaction
from kilonova.network.routers.model import Router
from kilonova.network.security_groups.model import SecurityGroup
from kilonova.network.subnets.model import Subnet
from kilonova.network.trunks.model import Trunk
from kilonova.network.trunks.model import not_found as trunk_not_found
from kilonova.store import Reader, Transaction

MAX_TAGS = 50
TAG = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^,\\x00-\\x1f]+$"}
BODY = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": TAG, "maxItems": MAX_TAGS}},
    "required": ["tags"],
    "additionalProperties": False,
}


class TaggedResource:
    """A kind of resource that has tags; `id_name` is the path parameter that holds its id."""

    def __init__(self, path: str, kind: type[Resource], id_name: str, not_found: Callable[[str], NotFound]) -> None:
        self.path = path
        self.kind = kind
        self.id_name = id_name
        self.not_found = not_found

    async def load(self, ctx: Context, reader: Reader, resource_id: str, rule: str) -> Resource:
        found = await resources.find(reader, self.kind, resource_id)
        if found is None:
            raise self.not_found(resource_id)
        target = policy_target(found.project_id, found if isinstance(found, Network) else None)
        if not ctx.may("get_tags", target):
            raise self.not_found(resource_id)
        ctx.authorize(rule, target)
        return found

    def declare_routes(self) -> None:
        path = f"{self.path}/{{{self.id_name}}}/tags"
        api.route("GET", path, checks=["get_tags"])(self._index)
        api.route("PUT", path, checks=["update_tags"], body=BODY)(self._replace)
        api.route("POST", path, checks=["update_tags"], body=BODY)(self._extend)
        api.route("DELETE", path, checks=["delete_tags"], status=204)(self._clear)
        api.route("GET", f"{path}/{{tag}}", checks=["get_tags"], status=204)(self._has)
        api.route("PUT", f"{path}/{{tag}}", checks=["update_tags"], status=201)(self._add)
        api.route("DELETE", f"{path}/{{tag}}", checks=["delete_tags"], status=204)(self._remove)

    async def _index(self, ctx: Context, **path: str) -> Response:
        """List the tags of a resource."""
        found = await self.load(ctx, ctx.db, path[self.id_name], "get_tags")
        return Response({"tags": resources.unpack_tags(found.tags)})

    async def _has(self, ctx: Context, **path: str) -> Response:
        """Check whether a resource has a tag."""
        found = await self.load(ctx, ctx.db, path[self.id_name], "get_tags")
        if path["tag"] not in resources.unpack_tags(found.tags):
            raise _tag_not_found(path["tag"])
        return Response()

    async def _replace(self, ctx: Context, **path: str) -> Response:
        """Replace the tags of a resource."""
        tags = await self._change(ctx, path, "update_tags", lambda tags: ctx.body["tags"])
        return Response({"tags": tags})

    async def _extend(self, ctx: Context, **path: str) -> Response:
        """Add tags to a resource."""
        tags = await self._change(ctx, path, "update_tags", lambda tags: [*tags, *ctx.body["tags"]])
        return Response({"tags": tags})

    async def _clear(self, ctx: Context, **path: str) -> Response:
        """Remove all tags of a resource."""
        await self._change(ctx, path, "delete_tags", lambda tags: [])
        return Response()

    async def _add(self, ctx: Context, **path: str) -> Response:
        """Add one tag to a resource."""
        tag = path["tag"]
        if not 0 < len(tag) <= 255 or any(character == "," or character < " " for character in tag):
            raise invalid("a tag must have 1 to 255 characters, without commas and control characters")
        await self._change(ctx, path, "update_tags", lambda tags: [*tags, tag])
        return Response()

    async def _remove(self, ctx: Context, **path: str) -> Response:
        """Remove one tag from a resource."""

        def without_tag(tags: list[str]) -> list[str]:
            if path["tag"] not in tags:
                raise _tag_not_found(path["tag"])
            return [tag for tag in tags if tag != path["tag"]]

        await self._change(ctx, path, "delete_tags", without_tag)
        return Response()

    async def _change(
        self, ctx: Context, path: dict[str, str], rule: str, change: Callable[[list[str]], list[str]]
    ) -> list[str]:
        async with write_transaction(ctx) as tx:
            found = await self._lock(ctx, tx, path[self.id_name], rule)
            packed = resources.pack_tags(change(resources.unpack_tags(found.tags)))
            tags = resources.unpack_tags(packed)
            if len(tags) > MAX_TAGS:
                raise invalid(f"a resource can have at most {MAX_TAGS} tags")
            await resources.update(tx, found, {"tags": packed}, ctx.now)
        return tags

    async def _lock(self, ctx: Context, tx: Transaction, resource_id: str, rule: str) -> Resource:
        found = await self.load(ctx, tx, resource_id, rule)
        return await resources.lock(tx, self.kind, resource_id) or found


def _tag_not_found(tag: str) -> NotFound:
    return NotFound(f"Tag {tag[:255]} could not be found.", code="TagNotFound")


TAGGED_RESOURCES = (
    TaggedResource("/v2.0/networks", Network, "network_id", network_not_found),
    TaggedResource("/v2.0/subnets", Subnet, "subnet_id", subnet_not_found),
    TaggedResource("/v2.0/ports", Port, "port_id", port_not_found),
    TaggedResource("/v2.0/routers", Router, "router_id", router_not_found),
    TaggedResource("/v2.0/floatingips", FloatingIp, "floatingip_id", floating_ip_not_found),
    TaggedResource("/v2.0/trunks", Trunk, "trunk_id", trunk_not_found),
    TaggedResource("/v2.0/security-groups", SecurityGroup, "security_group_id", group_not_found),
)
for _resource in TAGGED_RESOURCES:
    _resource.declare_routes()
