"""Limits of projects and domains, which replace the defaults of registered limits."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.identity.api import Json, api
from kilonova.identity.registered_limits import LIMIT, LimitsOfServices
from kilonova.identity.resources import get
from kilonova.identity.schemas import ID, ID_OR_NULL, NAME, QUERY_TEXT, REGION_ID_OR_NULL, TEXT_OR_NULL
from kilonova.store import Row, Transaction
from kilonova.store.conditions import Conditions
from kilonova.store.insert import insert_row

# The only model so far: a limit of a project does not depend on those of projects above or below it.
_MODEL = {"name": "flat", "description": "Limits of projects do not depend on the hierarchy of projects."}


@api.route("GET", "/v3/limits/model", policy="identity:get_limit_model")
async def show_model(ctx: Context) -> Response:
    """Show by which model services enforce limits."""
    return Response({"model": _MODEL})


class Limits(LimitsOfServices):
    noun = "limit"
    source = """(
        SELECT l.*, r.service_id, r.region_id, r.resource_name, COALESCE(p.domain_id, l.domain_id) AS in_domain_id
        FROM limits l JOIN registered_limits r ON r.id = l.registered_limit_id
        LEFT JOIN projects p ON p.id = l.project_id
    ) l"""
    properties: ClassVar[Json] = {
        "service_id": ID,
        "region_id": REGION_ID_OR_NULL,
        "resource_name": NAME,
        "resource_limit": LIMIT,
        "project_id": ID_OR_NULL,
        "domain_id": ID_OR_NULL,
        "description": TEXT_OR_NULL,
    }
    required = ("service_id", "resource_name", "resource_limit")
    known = ("service_id", "region_id", "resource_name", "resource_limit", "project_id", "domain_id", "description")
    columns = ("resource_limit", "description")
    defaults: ClassVar[Json] = {"description": None}
    filters = ("service_id", "resource_name", "project_id", "domain_id")
    list_query: ClassVar[Json] = {"region_id": QUERY_TEXT}

    def attributes(self, row: Row) -> Json:
        shown = {key: row[key] for key in ("project_id", "domain_id", "resource_limit")}
        return {**super().attributes(row), **shown}

    def target(self, item_id: str, row: Row | None = None) -> Json:
        if row is None:
            return {}
        return {
            "target.limit.project_id": row["project_id"],
            "target.limit.project.domain_id": row.get("in_domain_id"),
            "target.limit.domain.id": row["domain_id"],
        }

    def authorize_list(self, ctx: Context) -> None:
        ctx.authorize(self.rule("list"))

    def where(self, ctx: Context) -> Conditions:
        """Callers that may not see all limits get those of their project, or of their domain and its projects."""
        where = super().where(ctx)
        if not ctx.may(self.rule("get"), {}):
            column = "project_id" if ctx.token.domain_id is None else "in_domain_id"
            where.add(f"{column} = ?", ctx.token.domain_id or ctx.token.project_id)
        return where

    async def place(self, ctx: Context, body: Json) -> Json:
        placed = {key: body.get(key) for key in ("project_id", "domain_id")}
        if len([value for value in placed.values() if value is not None]) != 1:
            raise BadRequest("Exactly one of project_id and domain_id is expected for a limit.")
        return placed

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        for key, table in (("project_id", "projects"), ("domain_id", "domains")):
            if row[key] is not None:
                await get(tx, table, row[key])
        registered = await tx.fetch_one(
            "SELECT id, service_id, region_id, resource_name FROM registered_limits"
            " WHERE service_id = $1 AND region_id = $2 AND resource_name = $3",
            body["service_id"],
            body.get("region_id") or "",
            body["resource_name"],
        )
        if registered is None:
            raise Forbidden(f"There is no registered limit of {body['resource_name']} for this service and region.")
        await insert_row(tx, self.table, {**row, "registered_limit_id": registered["id"]})
        row |= {key: value for key, value in registered.items() if key != "id"}

    async def lock(self, ctx: Context, tx: Transaction, item_id: str) -> Row:
        return {**await super().lock(ctx, tx, item_id), **(await self.find(ctx, tx, item_id) or {})}

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        for key in ("service_id", "region_id", "resource_name", "project_id", "domain_id"):
            if (body.get(key, row[key]) or None) != (row[key] or None):
                raise BadRequest(f"The attribute {key} of a limit cannot be changed.")


LIMITS = Limits()
