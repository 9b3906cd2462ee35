"""Endpoints of the catalogue's services."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.identity import own_services
from kilonova.identity.api import Json
from kilonova.identity.catalog import SUBSTITUTES, SUBSTITUTION
from kilonova.identity.catalog_entries import CatalogEntries
from kilonova.identity.regions import REGIONS
from kilonova.identity.schemas import BOOLEAN, ID, REGION_ID_OR_NULL
from kilonova.identity.services import SERVICES
from kilonova.store import Row, Transaction


class Endpoints(CatalogEntries):
    noun = "endpoint"
    table = "catalog_endpoints"
    properties: ClassVar[Json] = {
        "service_id": ID,
        "interface": {"enum": list(own_services.INTERFACES)},
        "url": {"type": "string", "pattern": r"^https?://[^/\s]+", "maxLength": 2048},
        "region_id": REGION_ID_OR_NULL,
        # The former name of region_id. A region that does not exist is created.
        "region": REGION_ID_OR_NULL,
        "enabled": BOOLEAN,
    }
    required = ("service_id", "interface", "url")
    known = ("service_id", "interface", "url", "region_id", "region", "enabled")
    columns = ("service_id", "interface", "url", "region_id", "enabled")
    defaults: ClassVar[Json] = {"enabled": True, "region_id": None}
    filters = ("service_id", "interface", "region_id", "region")
    order = ("service_id", "interface", "id")

    def own(self, ctx: Context) -> list[Row]:
        return own_services.endpoints(ctx)

    def attributes(self, row: Row) -> Json:
        return {**super().attributes(row), "region": row["region_id"]}

    async def values(self, ctx: Context, body: Json) -> Json:
        for name in SUBSTITUTION.findall(body.get("url", "")):
            if name not in SUBSTITUTES:
                raise BadRequest(f"url: %({name})s is not known; known are {', '.join(SUBSTITUTES)}.")
        values = await super().values(ctx, body)
        if body.get("region") is not None and body.get("region_id") is None:
            values["region_id"] = body["region"]
        return values

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await self._check_references(ctx, tx, body)
        await super().insert(ctx, tx, row, body)

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        await self._check_references(ctx, tx, body)

    async def delete_dependents(self, ctx: Context, tx: Transaction, row: Row) -> None:
        await tx.execute("DELETE FROM endpoint_projects WHERE endpoint_id = $1", row["id"])

    async def _check_references(self, ctx: Context, tx: Transaction, body: Json) -> None:
        """Check that the service and the region exist. They are locked, so that they are not deleted meanwhile."""
        if "service_id" in body:
            await SERVICES.lock(ctx, tx, body["service_id"])
        if body.get("region_id") is not None:
            await REGIONS.lock(ctx, tx, body["region_id"])
        elif body.get("region") is not None:
            await REGIONS.ensure(ctx, tx, body["region"])


ENDPOINTS = Endpoints()
