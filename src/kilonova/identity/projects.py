"""Projects: the owners of resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import orjson

from kilonova.http import Context, Response
from kilonova.http.api import multi
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.http.filter_values import limited
from kilonova.identity import project_tree
from kilonova.identity.api import Json
from kilonova.identity.assigned_roles import delete_assignments
from kilonova.identity.listing import flag, list_page
from kilonova.identity.resources import Resource, lock
from kilonova.identity.schemas import (
    BOOLEAN,
    ID_OR_NULL,
    OPTIONS,
    QUERY_FLAG,
    QUERY_TEXT,
    SHORT_NAME,
    TAGS,
    TEXT_OR_NULL,
)
from kilonova.store import Row, Transaction
from kilonova.store.conditions import Conditions

TAG_FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")


class Projects(Resource):
    noun = "project"
    properties: ClassVar[Json] = {
        "name": SHORT_NAME,
        "domain_id": ID_OR_NULL,
        "parent_id": ID_OR_NULL,
        "description": TEXT_OR_NULL,
        "enabled": BOOLEAN,
        "is_domain": BOOLEAN,
        "tags": TAGS,
        "options": OPTIONS,
    }
    known = ("name", "domain_id", "parent_id", "description", "enabled", "is_domain", "tags")
    defaults: ClassVar[Json] = {**Resource.defaults, "tags": "[]"}
    filters = ("name", "domain_id")
    domain_column = "domain_id"
    list_query: ClassVar[Json] = {
        "parent_id": QUERY_TEXT,
        "is_domain": QUERY_FLAG,
        **dict.fromkeys(TAG_FILTERS, QUERY_TEXT),
    }
    # Other keys are ignored, as for other objects: clients send the domain also with an id.
    show_query: ClassVar[Json] = {**dict.fromkeys(project_tree.QUERY_KEYS, QUERY_FLAG), "*": multi({})}

    def target(self, item_id: str, row: Row | None = None) -> Json:
        target = {"target.project.id": item_id, "project_id": item_id}
        return target if row is None else {**target, "target.project.domain_id": row["domain_id"]}

    def attributes(self, row: Row) -> Json:
        return {
            "domain_id": row["domain_id"],
            "description": row["description"],
            "enabled": row["enabled"],
            "parent_id": row["parent_id"] or row["domain_id"],
            "is_domain": False,
            "tags": orjson.loads(row["tags"]),
        }

    def where(self, ctx: Context) -> Conditions:
        where = super().where(ctx)
        if (parent_id := ctx.query_one("parent_id")) is not None:
            where.add("COALESCE(parent_id, domain_id) = ?", parent_id)
        if flag(ctx, "is_domain"):
            where.add("1 = 0")
        return where

    async def show(self, ctx: Context, item_id: str) -> Response:
        row = await self.get(ctx, ctx.db, item_id)
        return Response({"project": {**self.view(ctx, row), **await project_tree.relatives(ctx, row, self._brief)}})

    def _brief(self, ctx: Context, row: Row) -> Json | None:
        """The entry of a parent or child in a list of them; None if the caller may not see this project."""
        if not ctx.may("identity:get_project", self.target(row["id"], row)):
            return None
        return {"project": self.view(ctx, row)}

    async def index(self, ctx: Context) -> Response:
        self.authorize_list(ctx)
        wanted = {key: set(limited(key, ctx.query[key][-1].split(","))) for key in TAG_FILTERS if key in ctx.query}
        keep = (lambda row: _matches_tags(wanted, row)) if wanted else None
        return await list_page(ctx, self.table, self.where(ctx), self.view, keep)

    async def values(self, ctx: Context, body: Json) -> Json:
        values = await super().values(ctx, body)
        return {**values, "tags": orjson.dumps(body["tags"]).decode()} if "tags" in body else values

    async def place(self, ctx: Context, body: Json) -> Json:
        """The domain of a new project, and its parent if that is a project. A parent may also be the domain."""
        domain_id, parent_id = body.get("domain_id"), body.get("parent_id")
        parent = await ctx.db.fetch_one("SELECT domain_id FROM projects WHERE id = $1", parent_id)
        if parent is None:
            return {"domain_id": parent_id or domain_id or home_domain(ctx), "parent_id": None}
        return {"domain_id": parent["domain_id"], "parent_id": parent_id}

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        if body.get("is_domain"):
            raise BadRequest("A project that acts as a domain is not supported: create a domain instead.")
        # Before the parent, as the deletion of the domain locks both.
        await lock(tx, "domains", row["domain_id"])
        if body.get("domain_id") not in (None, row["domain_id"]):
            raise BadRequest("The parent of a project must be in the same domain.")
        if row["parent_id"] is not None:
            await project_tree.check_parent(tx, row["parent_id"], is_enabled=row["enabled"])
        await super().insert(ctx, tx, row, body)

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        """Refuse changes of attributes that are set at creation. The same value again is allowed."""
        fixed = {
            "domain_id": row["domain_id"],
            "parent_id": row["parent_id"] or row["domain_id"],
            "is_domain": False,
        }
        for key, value in fixed.items():
            if body.get(key, value) != value:
                raise BadRequest(f"The attribute {key} of a project cannot be changed.")
        if body.get("enabled", row["enabled"]) != row["enabled"]:
            await project_tree.check_enabled(tx, row, body["enabled"])

    async def delete_dependents(self, ctx: Context, tx: Transaction, row: Row) -> None:
        project_id = row["id"]
        if await tx.fetch_value("SELECT 1 FROM projects WHERE parent_id = $1 LIMIT 1", project_id):
            raise Forbidden(f"Cannot delete the project {project_id} since it has child projects.")
        await delete_assignments(tx, "target_kind IN ('project', 'inherited_project') AND target_id = $1", project_id)
        await tx.execute("UPDATE users SET default_project_id = NULL WHERE default_project_id = $1", project_id)


def _matches_tags(wanted: Mapping[str, set[str]], row: Row) -> bool:
    tags = set(orjson.loads(row["tags"]))
    return (
        wanted.get("tags", set()) <= tags
        and ("tags-any" not in wanted or bool(wanted["tags-any"] & tags))
        and not ("not-tags" in wanted and wanted["not-tags"] <= tags)
        and not wanted.get("not-tags-any", set()) & tags
    )


def home_domain(ctx: Context) -> str:
    """The domain of new users and projects whose body names none: that of the token's scope."""
    return ctx.token.domain_id or ctx.token.project_domain_id or ctx.token.user_domain_id


PROJECTS = Projects()
