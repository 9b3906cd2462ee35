"""Services of the catalogue."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.identity import own_services
from kilonova.identity.api import Json
from kilonova.identity.catalog_entries import CatalogEntries
from kilonova.identity.resources import lock_all
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
        """Registered limits of the service stay, as in Keystone."""
        await lock_all(tx, "catalog_endpoints", "service_id", row["id"])
        endpoints = "SELECT id FROM catalog_endpoints WHERE service_id = $1"
        await tx.execute(f"DELETE FROM endpoint_projects WHERE endpoint_id IN ({endpoints})", row["id"])
        await tx.execute("DELETE FROM catalog_endpoints WHERE service_id = $1", row["id"])


SERVICES = Services()
