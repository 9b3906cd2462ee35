"""Regions of the catalogue."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Conflict, Forbidden
from kilonova.identity import own_services
from kilonova.identity.api import Json, api
from kilonova.identity.catalog_entries import CatalogEntries
from kilonova.identity.resources import new_id
from kilonova.identity.schemas import REGION_ID_OR_NULL, TEXT_OR_NULL, body_of
from kilonova.store import Row, Transaction


class Regions(CatalogEntries):
    noun = "region"
    properties: ClassVar[Json] = {
        "id": REGION_ID_OR_NULL,
        "description": TEXT_OR_NULL,
        "parent_region_id": REGION_ID_OR_NULL,
    }
    required = ()
    known = ("id", "description", "parent_region_id")
    columns = ("description", "parent_region_id")
    defaults: ClassVar[Json] = {"description": "", "parent_region_id": None}
    filters = ("parent_region_id",)

    def own(self, ctx: Context) -> list[Row]:
        return own_services.regions(ctx)

    async def place(self, ctx: Context, body: Json) -> Json:
        """Clients may choose the id, which serves as the name."""
        region_id = ctx.params.get("region_id")
        if region_id is not None and len(region_id) > REGION_ID_OR_NULL["maxLength"]:
            raise BadRequest(f"The id of a region can have at most {REGION_ID_OR_NULL['maxLength']} characters.")
        if region_id is not None and body.get("id", region_id) != region_id:
            raise BadRequest(f"id: {region_id} is expected, as in the path.")
        return {"id": region_id or body.get("id") or new_id()}

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await tx.lock("identity.regions")
        if await self.find(ctx, tx, row["id"]):
            raise Conflict(f"Conflict occurred attempting to store region - there is a region {row['id']} already.")
        await self._check_parent(ctx, tx, row["id"], row["parent_region_id"])
        await super().insert(ctx, tx, row, body)

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        await tx.lock("identity.regions")
        if body.get("id", row["id"]) != row["id"]:
            raise BadRequest("The id of a region cannot be changed.")
        await self._check_parent(ctx, tx, row["id"], body.get("parent_region_id"))

    async def _check_parent(self, ctx: Context, tx: Transaction, region_id: str, parent_id: str | None) -> None:
        above = parent_id
        while above is not None:
            if above == region_id:
                raise BadRequest(f"parent_region_id: {parent_id} is below the region {region_id} itself.")
            above = (await self.get(ctx, tx, above))["parent_region_id"]

    async def ensure(self, ctx: Context, tx: Transaction, region_id: str) -> None:
        """Create the region unless it exists."""
        await tx.lock("identity.regions")
        if await self.find(ctx, tx, region_id) is None:
            await tx.execute(
                "INSERT INTO regions (id, description, parent_region_id, extra) VALUES ($1, '', NULL, '{}')", region_id
            )

    async def delete_dependents(self, ctx: Context, tx: Transaction, row: Row) -> None:
        await tx.lock("identity.regions")
        for sql, users in (
            ("SELECT 1 FROM regions WHERE parent_region_id = $1 LIMIT 1", "regions below it"),
            ("SELECT 1 FROM catalog_endpoints WHERE region_id = $1 LIMIT 1", "endpoints"),
        ):
            if await tx.fetch_value(sql, row["id"]):
                raise Forbidden(f"The region {row['id']} cannot be deleted: it has {users}.")


REGIONS = Regions()


@api.route(
    "PUT",
    "/v3/regions/{region_id}",
    policy="identity:create_region",
    body=body_of("region", Regions.properties),
    status=201,
)
async def create_by_id(ctx: Context, region_id: str) -> Response:
    """Create a region with this id."""
    return await REGIONS.create(ctx)
