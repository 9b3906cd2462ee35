"""Services of the catalogue."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.http.errors import Forbidden
from kilonova.identity import own_services
from kilonova.identity.api import Json
from kilonova.identity.catalog_entries import CatalogEntries
from kilonova.identity.schemas import BOOLEAN, NAME, SHORT_TEXT_OR_NULL, TEXT_OR_NULL
from kilonova.store import Row, Transaction


class Services(CatalogEntries):
    noun = "service"
    table = "catalog_services"
    properties: ClassVar[Json] = {
        "type": NAME,
        "name": SHORT_TEXT_OR_NULL,
        "description": TEXT_OR_NULL,
        "enabled": BOOLEAN,
    }
    required = ("type",)
    known = columns = ("type", "name", "description", "enabled")
    defaults: ClassVar[Json] = {"name": "", "description": "", "enabled": True}
    filters = ("type", "name")
    order = ("type", "name", "id")

    def own(self, ctx: Context) -> list[Row]:
        return own_services.services(ctx)

    async def delete_dependents(self, ctx: Context, tx: Transaction, row: Row) -> None:
        if await tx.fetch_value("SELECT 1 FROM registered_limits WHERE service_id = $1 LIMIT 1", row["id"]):
            raise Forbidden(f"The service {row['id']} has registered limits: delete these first.")
        await tx.execute("DELETE FROM catalog_endpoints WHERE service_id = $1", row["id"])


SERVICES = Services()
