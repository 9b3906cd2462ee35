"""Roles, of the whole cloud or of a domain."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.http.errors import BadRequest
from kilonova.identity.api import Json
from kilonova.identity.assigned_roles import delete_assignments
from kilonova.identity.resources import Resource, get
from kilonova.identity.schemas import ID_OR_NULL, NAME, OPTIONS, QUERY_TEXT, TEXT_OR_NULL
from kilonova.store import Row, Transaction
from kilonova.store.conditions import Conditions


class Roles(Resource):
    noun = "role"
    properties: ClassVar[Json] = {
        "name": NAME,
        "description": TEXT_OR_NULL,
        "domain_id": ID_OR_NULL,
        "options": OPTIONS,
    }
    known = ("name", "description", "domain_id")
    columns = ("name", "description")
    defaults: ClassVar[Json] = {"description": None}
    flags = ()
    list_query: ClassVar[Json] = {"domain_id": QUERY_TEXT}
    further_rules: ClassVar[dict[str, tuple[str, ...]]] = {
        "list": ("identity:list_domain_roles",),
        **{verb: (f"identity:{verb}_domain_role",) for verb in ("get", "create", "update", "delete")},
    }

    def rule(self, verb: str, row: Row | None = None) -> str:
        return self.further_rules[verb][0] if row is not None and row["domain_id"] else super().rule(verb)

    def target(self, item_id: str, row: Row | None = None) -> Json:
        return {} if row is None else {"target.role.name": row.get("name")}

    def attributes(self, row: Row) -> Json:
        return {"domain_id": row["domain_id"] or None, "description": row["description"]}

    def authorize_list(self, ctx: Context) -> None:
        rule = self.rule("list", {"domain_id": ctx.query_one("domain_id")})
        ctx.authorize(rule, {"target.domain_id": ctx.token.domain_id})

    def where(self, ctx: Context) -> Conditions:
        """Without a domain in the query, the roles of the whole cloud."""
        where = super().where(ctx)
        where.add("domain_id = ?", ctx.query_one("domain_id") or "")
        return where

    async def place(self, ctx: Context, body: Json) -> Json:
        return {"domain_id": body.get("domain_id") or ""}

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        if row["domain_id"]:
            await get(tx, "domains", row["domain_id"])
        await super().insert(ctx, tx, row, body)

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        if (body.get("domain_id") or row["domain_id"]) != row["domain_id"]:
            raise BadRequest("The attribute domain_id of a role cannot be changed.")

    async def delete_dependents(self, ctx: Context, tx: Transaction, row: Row) -> None:
        await delete_assignments(tx, "role_id = $1", row["id"])
        await tx.execute("DELETE FROM implied_roles WHERE prior_id = $1 OR implied_id = $1", row["id"])


ROLES = Roles()
