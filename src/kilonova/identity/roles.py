"""Roles."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.identity.api import Json
from kilonova.identity.resources import Resource
from kilonova.identity.schemas import NAME, OPTIONS, QUERY_TEXT, TEXT_OR_NULL
from kilonova.store import Row, Transaction
from kilonova.store.conditions import Conditions


class Roles(Resource):
    noun = "role"
    properties: ClassVar[Json] = {
        "name": NAME,
        "description": TEXT_OR_NULL,
        "domain_id": {"type": ["string", "null"]},
        "options": OPTIONS,
    }
    known = ("name", "description", "domain_id")
    columns = ("name", "description")
    defaults: ClassVar[Json] = {"description": None}
    flags = ()
    list_query: ClassVar[Json] = {"domain_id": QUERY_TEXT}

    def attributes(self, row: Row) -> Json:
        return {"domain_id": None, "description": row["description"]}

    def where(self, ctx: Context) -> Conditions:
        where = super().where(ctx)
        if ctx.query_one("domain_id"):
            where.add("1 = 0")
        return where

    async def values(self, body: Json) -> Json:
        if body.get("domain_id") is not None:
            raise BadRequest("Domain-specific roles are not supported: domain_id must be null.")
        return await super().values(body)

    async def delete_dependents(self, tx: Transaction, row: Row) -> None:
        await tx.execute("DELETE FROM role_assignments WHERE role_id = $1", row["id"])
        await tx.execute("DELETE FROM implied_roles WHERE prior_id = $1 OR implied_id = $1", row["id"])


ROLES = Roles()
