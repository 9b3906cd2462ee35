"""/v2.0/{resource}/{id}/tags, the same for every kind of resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.http import Answer, Context
from kilonova.http.errors import NotFound
from kilonova.network import rows
from kilonova.network.access import target_of, writing
from kilonova.network.api import api
from kilonova.network.errors import (
    floating_ip_not_found,
    group_not_found,
    invalid,
    network_not_found,
    port_not_found,
    router_not_found,
    subnet_not_found,
)
from kilonova.store import Reader, Row, Transaction

MAX_TAGS = 50
TAG = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[^,\\x00-\\x1f]+$"}
BODY = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": TAG, "maxItems": MAX_TAGS}},
    "required": ["tags"],
    "additionalProperties": False,
}


class Tagged:
    """One kind of resource that bears tags: its path, its table, the name of its id in paths."""

    def __init__(self, path: str, table: str, name: str, missing: Callable[[str], NotFound]) -> None:
        self.path = path
        self.table = table
        self.name = name
        self.missing = missing

    async def load(self, ctx: Context, reader: Reader, row_id: str, rule: str) -> Row:
        row = await rows.get(reader, self.table, row_id)
        if row is None:
            raise self.missing(row_id)
        network = row if self.table == "networks" else None
        if not ctx.may("get_tags", target_of(row["project_id"], network)):
            raise self.missing(row_id)
        ctx.authorize(rule, target_of(row["project_id"], network))
        return row

    def declare(self) -> None:
        one = f"{self.path}/{{{self.name}}}/tags"
        api.route("GET", one, checks=["get_tags"])(self._index)
        api.route("PUT", one, checks=["update_tags"], body=BODY)(self._replace)
        api.route("POST", one, checks=["update_tags"], body=BODY)(self._extend)
        api.route("DELETE", one, checks=["delete_tags"], status=204)(self._clear)
        api.route("GET", f"{one}/{{tag}}", checks=["get_tags"], status=204)(self._has)
        api.route("PUT", f"{one}/{{tag}}", checks=["update_tags"], status=201)(self._add)
        api.route("DELETE", f"{one}/{{tag}}", checks=["delete_tags"], status=204)(self._remove)

    async def _index(self, ctx: Context, **path: str) -> Answer:
        """List the tags of a resource."""
        row = await self.load(ctx, ctx.db, path[self.name], "get_tags")
        return Answer({"tags": rows.unpack_tags(row["tags"])})

    async def _has(self, ctx: Context, **path: str) -> Answer:
        """Whether a resource bears a tag."""
        row = await self.load(ctx, ctx.db, path[self.name], "get_tags")
        if path["tag"] not in rows.unpack_tags(row["tags"]):
            raise _tag_not_found(path["tag"])
        return Answer()

    async def _replace(self, ctx: Context, **path: str) -> Answer:
        """Replace the tags of a resource."""
        tags = await self._change(ctx, path, "update_tags", lambda held: ctx.body["tags"])
        return Answer({"tags": tags})

    async def _extend(self, ctx: Context, **path: str) -> Answer:
        """Add tags to a resource."""
        tags = await self._change(ctx, path, "update_tags", lambda held: [*held, *ctx.body["tags"]])
        return Answer({"tags": tags})

    async def _clear(self, ctx: Context, **path: str) -> Answer:
        """Remove all tags of a resource."""
        await self._change(ctx, path, "delete_tags", lambda held: [])
        return Answer()

    async def _add(self, ctx: Context, **path: str) -> Answer:
        """Add one tag to a resource."""
        tag = path["tag"]
        if not 0 < len(tag) <= 255 or any(character == "," or character < " " for character in tag):
            raise invalid("a tag has 1 to 255 characters, no commas and no control characters")
        await self._change(ctx, path, "update_tags", lambda held: [*held, tag])
        return Answer()

    async def _remove(self, ctx: Context, **path: str) -> Answer:
        """Remove one tag of a resource."""

        def without(held: list[str]) -> list[str]:
            if path["tag"] not in held:
                raise _tag_not_found(path["tag"])
            return [tag for tag in held if tag != path["tag"]]

        await self._change(ctx, path, "delete_tags", without)
        return Answer()

    async def _change(
        self, ctx: Context, path: dict[str, Any], rule: str, new: Callable[[list[str]], list[str]]
    ) -> list[str]:
        async with writing(ctx) as tx:
            row = await self._lock(ctx, tx, path[self.name], rule)
            packed = rows.pack_tags(new(rows.unpack_tags(row["tags"])))
            tags = rows.unpack_tags(packed)
            if len(tags) > MAX_TAGS:
                raise invalid(f"a resource has at most {MAX_TAGS} tags")
            await rows.update(tx, self.table, row, {"tags": packed}, ctx.now)
        return tags

    async def _lock(self, ctx: Context, tx: Transaction, row_id: str, rule: str) -> Row:
        row = await self.load(ctx, tx, row_id, rule)
        return await rows.lock(tx, self.table, row_id) or row


def _tag_not_found(tag: str) -> NotFound:
    return NotFound(f"Tag {tag[:255]} could not be found.", code="TagNotFound")


TAGGED = (
    Tagged("/v2.0/networks", "networks", "network_id", network_not_found),
    Tagged("/v2.0/subnets", "subnets", "subnet_id", subnet_not_found),
    Tagged("/v2.0/ports", "ports", "port_id", port_not_found),
    Tagged("/v2.0/routers", "routers", "router_id", router_not_found),
    Tagged("/v2.0/floatingips", "floating_ips", "floatingip_id", floating_ip_not_found),
    Tagged("/v2.0/security-groups", "security_groups", "security_group_id", group_not_found),
)
for _tagged in TAGGED:
    _tagged.declare()
