"""Registered limits: the default limits of services' resources."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.identity.api import Json
from kilonova.identity.regions import REGIONS
from kilonova.identity.resources import Resource
from kilonova.identity.schemas import ID, NAME, QUERY_TEXT, REGION_ID_OR_NULL, TEXT_OR_NULL
from kilonova.identity.services import SERVICES
from kilonova.store import Row, Transaction
from kilonova.store.conditions import Conditions

# -1 is unlimited.
LIMIT: Json = {"type": "integer", "minimum": -1, "maximum": 2**31 - 1}


class LimitsOfServices(Resource):
    """What registered limits and limits have in common: several are created at a time, for a resource of a service."""

    flags = ()
    order: ClassVar[tuple[str, ...]] = ("resource_name", "id")

    def rule(self, verb: str, row: Row | None = None) -> str:
        return f"identity:create_{self.plural}" if verb == "create" else super().rule(verb, row)

    def create_body(self) -> Json:
        many = {"type": "array", "items": self._item(), "minItems": 1, "maxItems": 1000}
        return {
            "type": "object",
            "properties": {self.plural: many},
            "required": [self.plural],
            "additionalProperties": False,
        }

    def _item(self) -> Json:
        item: Json = super().create_body()["properties"][self.noun]
        return item

    async def create(self, ctx: Context) -> Response:
        return Response({self.plural: await self.create_all(ctx, ctx.body[self.plural])})

    def name_of(self, row: Json, body: Json) -> str:
        return str(body["resource_name"])

    def where(self, ctx: Context) -> Conditions:
        where = super().where(ctx)
        if (region_id := ctx.query_one("region_id")) is not None:
            where.add("region_id = ?", region_id)
        return where

    def attributes(self, row: Row) -> Json:
        shown = {key: row[key] for key in ("service_id", "resource_name", "description")}
        return {**shown, "region_id": row["region_id"] or None}


class RegisteredLimits(LimitsOfServices):
    noun = "registered_limit"
    properties: ClassVar[Json] = {
        "service_id": ID,
        "region_id": REGION_ID_OR_NULL,
        "resource_name": NAME,
        "default_limit": LIMIT,
        "description": TEXT_OR_NULL,
    }
    required = ("service_id", "resource_name", "default_limit")
    known = columns = ("service_id", "region_id", "resource_name", "default_limit", "description")
    defaults: ClassVar[Json] = {"region_id": "", "description": None}
    filters = ("service_id", "resource_name")
    list_query: ClassVar[Json] = {"region_id": QUERY_TEXT}

    def attributes(self, row: Row) -> Json:
        return {**super().attributes(row), "default_limit": row["default_limit"]}

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await check_service_and_region(ctx, tx, body)
        await super().insert(ctx, tx, row, body)

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        await check_service_and_region(ctx, tx, body)
        changed = {key: (body[key] or "") for key in ("service_id", "region_id", "resource_name") if key in body}
        if any(row[key] != value for key, value in changed.items()):
            await self._check_unused(tx, row)

    async def delete_dependents(self, ctx: Context, tx: Transaction, row: Row) -> None:
        await self._check_unused(tx, row)

    async def _check_unused(self, tx: Transaction, row: Row) -> None:
        if await tx.fetch_value("SELECT 1 FROM limits WHERE registered_limit_id = $1 LIMIT 1", row["id"]):
            raise Forbidden(f"The registered limit {row['id']} has limits of projects or domains: delete these first.")


async def check_service_and_region(ctx: Context, tx: Transaction, body: Json) -> None:
    """Check that the service and the region of the body exist. Both may be deleted later."""
    for key, kind in (("service_id", SERVICES), ("region_id", REGIONS)):
        if body.get(key) is not None and await kind.find(ctx, tx, body[key]) is None:
            raise BadRequest(f"{key}: there is no {kind.noun} {body[key]}.")


REGISTERED_LIMITS = RegisteredLimits()
