"""Domains: the namespaces of users and projects."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.http.errors import Forbidden
from kilonova.identity.api import Json
from kilonova.identity.assigned_roles import delete_assignments
from kilonova.identity.resources import Resource, lock_all
from kilonova.identity.schemas import BOOLEAN, OPTIONS, SHORT_NAME, TEXT_OR_NULL
from kilonova.identity.seed import DOMAIN_ID, grant_service_role
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
    domain_column = "id"

    def target(self, item_id: str, row: Row | None = None) -> Json:
        return {"target.domain.id": item_id}

    def attributes(self, row: Row) -> Json:
        return {"description": row["description"], "enabled": row["enabled"], "tags": []}

    async def insert(self, ctx: Context, tx: Transaction, row: Json, body: Json) -> None:
        await super().insert(ctx, tx, row, body)
        await grant_service_role(tx, row["id"])

    async def check_update(self, ctx: Context, tx: Transaction, row: Row, body: Json) -> None:
        if row["id"] == DOMAIN_ID and not body.get("enabled", True):
            raise Forbidden("The default domain has the service user of the cloud and cannot be disabled.")

    async def delete_dependents(self, ctx: Context, tx: Transaction, row: Row) -> None:
        if row["enabled"]:
            raise Forbidden("Cannot delete a domain that is enabled, please disable it first.")
        domain_id, projects = row["id"], "SELECT id FROM projects WHERE domain_id = $1"
        # Projects before users: role assignments and credentials are made in this order too.
        for table in ("projects", "groups", "users", "roles"):
            await lock_all(tx, table, "domain_id", domain_id)
        await delete_assignments(
            tx,
            f"target_kind IN ('project', 'inherited_project') AND target_id IN ({projects})",
            domain_id,
        )
        await delete_assignments(tx, "target_kind IN ('domain', 'inherited') AND target_id = $1", domain_id)
        await tx.execute(
            f"UPDATE users SET default_project_id = NULL WHERE default_project_id IN ({projects})", domain_id
        )
        await tx.execute("UPDATE projects SET parent_id = NULL WHERE domain_id = $1", domain_id)
        for table in ("users", "groups", "roles", "projects"):
            await tx.execute(f"DELETE FROM {table} WHERE domain_id = $1", domain_id)


DOMAINS = Domains()
