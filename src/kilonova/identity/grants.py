"""Routes that assign roles to users and groups.

The scope is a project, a domain or the system. An assignment can also be for what projects inherit: all projects of a
domain, or all projects below a project.
"""

from __future__ import annotations

from typing import Any, Literal

from kilonova.http import Context, Response
from kilonova.identity.api import Json, api, list_links
from kilonova.identity.assigned_roles import Actor, check_domain
from kilonova.identity.domains import DOMAINS
from kilonova.identity.groups import GROUPS
from kilonova.identity.projects import PROJECTS
from kilonova.identity.resources import Resource, conflicts, get, lock, lock_deletions, not_found, write_transaction
from kilonova.identity.roles import ROLES
from kilonova.identity.token import INHERITED, INHERITED_PROJECT, SYSTEM, Scope, ScopeKind
from kilonova.identity.users import USERS
from kilonova.store import Reader, Row, Transaction

# The objects that scopes name. They have no foreign key.
_PLACES: dict[str, Resource] = {
    "project": PROJECTS,
    "domain": DOMAINS,
    INHERITED: DOMAINS,
    INHERITED_PROJECT: PROJECTS,
}
_ACTORS: dict[str, Resource] = {"user": USERS, "group": GROUPS}
_INHERITED_KINDS = (INHERITED, INHERITED_PROJECT)


class _Grant:
    """The objects that a path names: a user or group, a scope, and a role unless the path is a list."""

    def __init__(self, actor: Actor, scope: Scope, role_id: str | None = None) -> None:
        self.actor, self.scope, self.role_id = actor, scope, role_id

    async def authorize(self, ctx: Context, db: Reader, rule: str) -> None:
        """403 if the rule refuses; 404 if one of the objects does not exist."""
        found = [(table, item_id, await table.find(ctx, db, item_id)) for table, item_id in self._objects()]
        target: dict[str, Any] = {}
        for table, item_id, row in found:
            target |= table.target(item_id, row) or {}
        ctx.authorize(rule, target)
        for table, item_id, row in found:
            if row is None:
                raise not_found(table.noun, item_id)

    def _objects(self) -> list[tuple[Resource, str]]:
        place = _PLACES.get(self.scope.kind)
        return [
            *([(place, self.scope.id)] if place else []),
            (_ACTORS[self.actor.kind], self.actor.id),
            *([(ROLES, self.role_id)] if self.role_id is not None else []),
        ]

    @property
    def key(self) -> tuple[str, ...]:
        assert self.role_id is not None
        return self.actor.id, self.scope.kind, self.scope.id, self.role_id

    @property
    def condition(self) -> str:
        return f"{self.actor.column} = $1 AND target_kind = $2 AND target_id = $3 AND role_id = $4"

    async def lock_scope(self, tx: Transaction) -> Row | None:
        """Lock the project or domain, so that it is not deleted while the role is assigned."""
        place = _PLACES.get(self.scope.kind)
        return await lock(tx, place.table, self.scope.id) if place else None

    async def insert(self, tx: Transaction) -> None:
        await tx.execute(
            f"INSERT INTO {self.actor.table} ({self.actor.column}, target_kind, target_id, role_id) "
            "VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            *self.key,
        )

    async def exists(self, db: Reader) -> bool:
        sql = f"SELECT 1 FROM {self.actor.table} WHERE {self.condition}"
        return await db.fetch_value(sql, *self.key) is not None

    async def delete(self, tx: Transaction) -> bool:
        return bool(await tx.execute(f"DELETE FROM {self.actor.table} WHERE {self.condition}", *self.key))

    def not_found(self) -> Exception:
        text = f"role {self.role_id} of {self.actor.kind} {self.actor.id} on {self.scope.kind} {self.scope.id}"
        return not_found("role assignment", text)

    async def fetch_roles(self, db: Reader) -> list[Row]:
        return await db.fetch(
            f"SELECT r.* FROM {self.actor.table} a JOIN roles r ON r.id = a.role_id "
            f"WHERE a.{self.actor.column} = $1 AND a.target_kind = $2 AND a.target_id = $3 ORDER BY r.name",
            self.actor.id,
            self.scope.kind,
            self.scope.id,
        )


def grant_path(actor: Actor, scope: Scope, role_id: str = "") -> str:
    """The path of an assignment, or of the list of a user's or group's roles in a scope."""
    place = {"system": "system", INHERITED: f"domains/{scope.id}", INHERITED_PROJECT: f"projects/{scope.id}"}.get(
        scope.kind, f"{scope.kind}s/{scope.id}"
    )
    before, after = ("OS-INHERIT/", "/inherited_to_projects") if scope.kind in _INHERITED_KINDS else ("", "")
    return f"{before}{place}/{actor.kind}s/{actor.id}/roles{'/' if role_id else ''}{role_id}{after}"


def _domain_of(scope: Scope, place: Row | None) -> str | None:
    """The domain whose roles may be assigned in the scope."""
    if place is None:
        return None
    return scope.id if "domain_id" not in place else str(place["domain_id"])


def _declare(actor_kind: Literal["user", "group"], kind: ScopeKind, rules: Json) -> None:
    """Declare the routes for one kind of actor in one kind of scope."""

    def grant(params: dict[str, str]) -> _Grant:
        actor = Actor(actor_kind, params[f"{actor_kind}_id"])
        scope = SYSTEM if kind == "system" else Scope(kind, params.get("project_id") or params["domain_id"])
        return _Grant(actor, scope, params.get("role_id"))

    place = "domain" if kind == INHERITED else "project" if kind == INHERITED_PROJECT else kind
    names = Actor(actor_kind, f"{{{actor_kind}_id}}"), Scope(kind, f"{{{place}_id}}")
    many, one = f"/v3/{grant_path(*names)}", f"/v3/{grant_path(*names, '{role_id}')}"

    async def list_grants(ctx: Context, **params: str) -> Response:
        found = grant(params)
        await found.authorize(ctx, ctx.db, rules["list"])
        shown = [ROLES.view(ctx, row) for row in await found.fetch_roles(ctx.db)]
        return Response({"roles": shown, "links": list_links(ctx, grant_path(found.actor, found.scope))})

    async def assign(ctx: Context, **params: str) -> None:
        found = grant(params)
        with conflicts("role assignment", str(found.role_id)):
            async with write_transaction(ctx) as tx:
                await found.authorize(ctx, tx, rules["create"])
                scope = await found.lock_scope(tx)
                check_domain(await get(tx, "roles", str(found.role_id)), _domain_of(found.scope, scope))
                await found.insert(tx)

    async def check(ctx: Context, **params: str) -> None:
        found = grant(params)
        await found.authorize(ctx, ctx.db, rules["check"])
        if not await found.exists(ctx.db):
            raise found.not_found()

    async def unassign(ctx: Context, **params: str) -> None:
        found = grant(params)
        async with write_transaction(ctx) as tx:
            await found.authorize(ctx, tx, rules["revoke"])
            await lock_deletions(tx)
            if not await found.delete(tx):
                raise found.not_found()

    list_grants.__doc__ = f"List the roles a {actor_kind} has in this scope."
    assign.__doc__ = f"Assign a role to a {actor_kind} in this scope."
    check.__doc__ = f"Check whether a {actor_kind} has a role in this scope."
    unassign.__doc__ = f"Unassign a role from a {actor_kind} in this scope; tokens no longer have it."
    api.route("GET", many, checks=[rules["list"]])(list_grants)
    api.route("PUT", one, checks=[rules["create"]], status=204)(assign)
    for method in ("GET", "HEAD"):
        api.route(method, one, checks=[rules["check"]], status=204)(check)
    api.route("DELETE", one, checks=[rules["revoke"]], status=204)(unassign)


_GRANT = {
    "list": "identity:list_grants",
    "create": "identity:create_grant",
    "check": "identity:check_grant",
    "revoke": "identity:revoke_grant",
}


def _system_rules(actor: str) -> Json:
    return {
        "list": f"identity:list_system_grants_for_{actor}",
        **{verb: f"identity:{verb}_system_grant_for_{actor}" for verb in ("create", "check", "revoke")},
    }


for _actor in ("user", "group"):
    for _kind in ("project", "domain", INHERITED, INHERITED_PROJECT):
        _declare(_actor, _kind, _GRANT)
    _declare(_actor, "system", _system_rules(_actor))
