"""Policies: documents that clients store. As in Keystone, the cloud does not interpret them."""

from __future__ import annotations

from typing import ClassVar

import orjson

from kilonova.http import Context
from kilonova.identity.api import Json
from kilonova.identity.resources import Resource
from kilonova.identity.schemas import NAME
from kilonova.store import Row


class Policies(Resource):
    noun = "policy"
    plural = "policies"
    properties: ClassVar[Json] = {"type": NAME, "blob": {}}
    required = ("type", "blob")
    known = ("type", "blob")
    columns = ("type",)
    defaults: ClassVar[Json] = {}
    filters = ("type",)
    flags = ()
    order: ClassVar[tuple[str, ...]] = ("type", "id")

    async def values(self, ctx: Context, body: Json) -> Json:
        values = await super().values(ctx, body)
        return {**values, "blob": orjson.dumps(body["blob"]).decode()} if "blob" in body else values

    def attributes(self, row: Row) -> Json:
        return {"type": row["type"], "blob": orjson.loads(row["blob"])}


POLICIES = Policies()
