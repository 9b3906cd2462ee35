"""Domains: the namespaces of users and projects."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.http.errors import Forbidden
from kilonova.identity.api import Json
from kilonova.identity.resources import Resource
from kilonova.identity.schemas import BOOLEAN, OPTIONS, SHORT_NAME, TEXT_OR_NULL
from kilonova.identity.seed import grant_service_role
from kilonova.store import Row, Transaction


class Domains(Resource):
    noun = "domain"
    properties: ClassVar[Json] = {
        "name": SHORT_NAME,
        "description": TEXT_OR_NULL,
        "enabled": BOOLEAN,
        "options": OPTIONS,
    }
    known = ("name", "description", "enabled")

    def target(self, item_id: str) -> Json:
        return {"target.domain.id": item_id}

    def attributes(self, row: Row) -> Json:
        return {"description": row["description"], "enabled": row["enabled"], "tags": []}

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await super().insert(ctx, tx, row, body)
        await grant_service_role(tx, row["id"])

    async def delete_dependents(self, tx: Transaction, row: Row) -> None:
        if row["enabled"]:
            raise Forbidden("Cannot delete a domain that is enabled, please disable it first.")
        domain_id = row["id"]
        projects = "SELECT id FROM projects WHERE domain_id = $1"
        await tx.execute(
            f"DELETE FROM role_assignments WHERE target_kind = 'project' AND target_id IN ({projects})", domain_id
        )
        await tx.execute(
            "DELETE FROM role_assignments WHERE target_kind IN ('domain', 'inherited') AND target_id = $1", domain_id
        )
        await tx.execute("DELETE FROM users WHERE domain_id = $1", domain_id)
        await tx.execute("UPDATE projects SET parent_id = NULL WHERE domain_id = $1", domain_id)
        await tx.execute("DELETE FROM projects WHERE domain_id = $1", domain_id)


DOMAINS = Domains()
