"""Routes of role assignments: on a project, a domain, the system, or all projects of a domain (inherited)."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest, NotSupported
from kilonova.identity.api import Json, api, link, list_links
from kilonova.identity.listing import flag
from kilonova.identity.resources import conflicts, get, lock, not_found, token_validator, write_transaction
from kilonova.identity.roles import ROLES
from kilonova.identity.schemas import QUERY_FLAG, QUERY_TEXT
from kilonova.identity.token import INHERITED, SYSTEM, Scope
from kilonova.identity.token_provider import revoke
from kilonova.store import Reader, Row
from kilonova.store.conditions import Conditions

# Grants: the same routes for every kind of scope.

_TABLES = {"project": "projects", "domain": "domains", INHERITED: "domains"}


async def _check_exists(db: Reader, scope: Scope, user_id: str, role_id: str | None = None) -> None:
    if scope.kind in _TABLES:
        await get(db, _TABLES[scope.kind], scope.id)
    await get(db, "users", user_id)
    if role_id is not None:
        await get(db, "roles", role_id)


def _key(scope: Scope, user_id: str, role_id: str) -> tuple[str, str, str, str]:
    return user_id, scope.kind, scope.id, role_id


_IS_ASSIGNMENT = "user_id = $1 AND target_kind = $2 AND target_id = $3 AND role_id = $4"


async def _list(ctx: Context, scope: Scope, user_id: str) -> Response:
    await _check_exists(ctx.db, scope, user_id)
    rows = await ctx.db.fetch(
        "SELECT r.* FROM role_assignments a JOIN roles r ON r.id = a.role_id "
        "WHERE a.user_id = $1 AND a.target_kind = $2 AND a.target_id = $3 ORDER BY r.name",
        user_id,
        scope.kind,
        scope.id,
    )
    where = f"{_scope_path(scope)}/users/{user_id}/roles{_path_suffix(scope.kind)}"
    return Response({"roles": [ROLES.view(ctx, row) for row in rows], "links": list_links(ctx, where)})


async def _assign(ctx: Context, scope: Scope, user_id: str, role_id: str) -> None:
    with conflicts("role assignment", role_id):
        async with write_transaction(ctx) as tx:
            await _check_exists(tx, scope, user_id, role_id)
            if scope.kind in _TABLES:
                # The target has no foreign key, so its row is locked while the role is assigned.
                await lock(tx, _TABLES[scope.kind], scope.id)
            await tx.execute(
                "INSERT INTO role_assignments (user_id, target_kind, target_id, role_id) VALUES ($1, $2, $3, $4) "
                "ON CONFLICT DO NOTHING",
                *_key(scope, user_id, role_id),
            )


async def _check_assigned(ctx: Context, scope: Scope, user_id: str, role_id: str) -> None:
    await _check_exists(ctx.db, scope, user_id, role_id)
    sql = f"SELECT 1 FROM role_assignments WHERE {_IS_ASSIGNMENT}"
    if await ctx.db.fetch_value(sql, *_key(scope, user_id, role_id)) is None:
        raise _not_assigned(scope, user_id, role_id)


async def _unassign(ctx: Context, scope: Scope, user_id: str, role_id: str) -> None:
    """Delete the assignment, and revoke the user's tokens with this scope."""
    async with write_transaction(ctx) as tx:
        await _check_exists(tx, scope, user_id, role_id)
        if not await tx.execute(f"DELETE FROM role_assignments WHERE {_IS_ASSIGNMENT}", *_key(scope, user_id, role_id)):
            raise _not_assigned(scope, user_id, role_id)
        # Tokens of any project of the domain may contain an inherited role.
        subject = f"user {user_id}" if scope.kind == INHERITED else f"user {user_id} {scope.kind} {scope.id}"
        await revoke(tx, subject, clock.now(), token_validator(ctx).token_seconds)


def _not_assigned(scope: Scope, user_id: str, role_id: str) -> Exception:
    return not_found("role assignment", f"role {role_id} of user {user_id} on {scope.kind} {scope.id}")


def _scope_path(scope: Scope) -> str:
    if scope.kind == INHERITED:
        return f"OS-INHERIT/domains/{scope.id}"
    return "system" if scope.kind == "system" else f"{scope.kind}s/{scope.id}"


def _path_suffix(kind: str) -> str:
    return "/inherited_to_projects" if kind == INHERITED else ""


def _declare(kind: Any, prefix: str, rules: Json) -> None:
    """Declare the routes of one kind of scope below `prefix`."""

    def scope_of(params: dict[str, str]) -> Scope:
        return SYSTEM if kind == "system" else Scope(kind, *params.values())

    path, ending = f"{prefix}/users/{{user_id}}/roles", _path_suffix(kind)

    @api.route("GET", path + ending, policy=rules["list"])
    async def list_grants(ctx: Context, user_id: str, **params: str) -> Response:
        """List the roles a user has in this scope."""
        return await _list(ctx, scope_of(params), user_id)

    @api.route("PUT", f"{path}/{{role_id}}{ending}", policy=rules["create"], status=204)
    async def assign(ctx: Context, user_id: str, role_id: str, **params: str) -> None:
        """Assign a role to a user in this scope."""
        await _assign(ctx, scope_of(params), user_id, role_id)

    async def check(ctx: Context, user_id: str, role_id: str, **params: str) -> None:
        """Check whether a user has a role in this scope."""
        await _check_assigned(ctx, scope_of(params), user_id, role_id)

    for method in ("GET", "HEAD"):
        api.route(method, f"{path}/{{role_id}}{ending}", policy=rules["check"], status=204)(check)

    @api.route("DELETE", f"{path}/{{role_id}}{ending}", policy=rules["revoke"], status=204)
    async def unassign(ctx: Context, user_id: str, role_id: str, **params: str) -> None:
        """Unassign a role from a user in this scope."""
        await _unassign(ctx, scope_of(params), user_id, role_id)


_GRANT = {
    "list": "identity:list_grants",
    "create": "identity:create_grant",
    "check": "identity:check_grant",
    "revoke": "identity:revoke_grant",
}
_SYSTEM_GRANT = {
    "list": "identity:list_system_grants_for_user",
    "create": "identity:create_system_grant_for_user",
    "check": "identity:check_system_grant_for_user",
    "revoke": "identity:revoke_system_grant_for_user",
}
_declare("project", "/v3/projects/{project_id}", _GRANT)
_declare("domain", "/v3/domains/{domain_id}", _GRANT)
_declare("system", "/v3/system", _SYSTEM_GRANT)
_declare(INHERITED, "/v3/OS-INHERIT/domains/{domain_id}", _GRANT)


# The list of all assignments

_LIST = """
SELECT a.user_id, a.target_kind, a.target_id, a.role_id, r.name AS role_name,
       u.name AS user_name, ud.id AS user_domain_id, ud.name AS user_domain_name,
       CASE WHEN a.target_kind = 'project' THEN p.name ELSE d.name END AS target_name,
       pd.id AS target_domain_id, pd.name AS target_domain_name
FROM {} a
JOIN roles r ON r.id = a.role_id
JOIN users u ON u.id = a.user_id
JOIN domains ud ON ud.id = u.domain_id
LEFT JOIN projects p ON a.target_kind = 'project' AND p.id = a.target_id
LEFT JOIN domains pd ON pd.id = p.domain_id
LEFT JOIN domains d ON a.target_kind IN ('domain', 'inherited') AND d.id = a.target_id
"""
_ASSIGNED = "role_assignments"
# An inherited role is effective on every project of the domain.
_EFFECTIVE = """(
    SELECT user_id, target_kind, target_id, role_id FROM role_assignments WHERE target_kind <> 'inherited'
    UNION
    SELECT i.user_id, 'project', h.id, i.role_id FROM role_assignments i JOIN projects h ON h.domain_id = i.target_id
    WHERE i.target_kind = 'inherited'
)"""

QUERY: Json = {
    "user.id": QUERY_TEXT,
    "group.id": QUERY_TEXT,
    "role.id": QUERY_TEXT,
    "scope.project.id": QUERY_TEXT,
    "scope.domain.id": QUERY_TEXT,
    "scope.system": QUERY_TEXT,
    "scope.OS-INHERIT:inherited_to": QUERY_TEXT,
    "effective": QUERY_FLAG,
    "include_names": QUERY_FLAG,
    "include_subtree": QUERY_FLAG,
}


@api.route("GET", "/v3/role_assignments", policy="identity:list_role_assignments", query=QUERY)
async def index(ctx: Context) -> Response:
    """List role assignments; `effective` adds implied and inherited roles."""
    effective, names = flag(ctx, "effective"), flag(ctx, "include_names")
    where = _where(ctx, effective)
    sql = f"{_LIST} WHERE {where.where()} ORDER BY a.user_id, a.target_kind, a.target_id, r.name"
    rows = await ctx.db.fetch(sql.format(_EFFECTIVE if effective else _ASSIGNED), *where.arguments)
    if effective:
        rows = _with_implied(rows, await _implications(ctx.db))
        if (role_id := ctx.query_one("role.id")) is not None:
            rows = [row for row in rows if row["role_id"] == role_id]
    shown = [_view(ctx, row, names) for row in rows]
    return Response({"role_assignments": shown, "links": list_links(ctx, "role_assignments")})


def _where(ctx: Context, effective: bool) -> Conditions:
    project_id, domain_id, system = (ctx.query_one(f"scope.{key}") for key in ("project.id", "domain.id", "system"))
    if sum(value is not None for value in (project_id, domain_id, system)) > 1:
        raise BadRequest("Only one of scope.project.id, scope.domain.id and scope.system is allowed.")
    if flag(ctx, "include_subtree"):
        raise NotSupported("include_subtree is not supported.")
    where = Conditions()
    if (user_id := ctx.query_one("user.id")) is not None:
        where.add("a.user_id = ?", user_id)
    # Any role may imply the wanted one, so effective roles are filtered after the query.
    if (role_id := ctx.query_one("role.id")) is not None and not effective:
        where.add("a.role_id = ?", role_id)
    if project_id is not None:
        where.add("a.target_kind = 'project' AND a.target_id = ?", project_id)
    if domain_id is not None:
        where.add("a.target_kind IN ('domain', 'inherited') AND a.target_id = ?", domain_id)
    if system is not None:
        where.add("a.target_kind = 'system'")
    if (inherited_to := ctx.query_one("scope.OS-INHERIT:inherited_to")) is not None:
        if inherited_to != "projects":
            raise BadRequest("scope.OS-INHERIT:inherited_to can only be projects.")
        where.add("a.target_kind = 'inherited'")
    if "group.id" in ctx.query:
        where.add("1 = 0")
    return where


async def _implications(db: Reader) -> dict[str, list[tuple[str, str]]]:
    """Id and name of the roles that each role implies directly."""
    found: dict[str, list[tuple[str, str]]] = {}
    sql = "SELECT i.prior_id, i.implied_id, r.name FROM implied_roles i JOIN roles r ON r.id = i.implied_id"
    for row in await db.fetch(sql):
        found.setdefault(row["prior_id"], []).append((row["implied_id"], row["name"]))
    return found


def _with_implied(rows: list[Row], implications: dict[str, list[tuple[str, str]]]) -> list[Row]:
    seen: set[tuple[str, str, str, str]] = set()
    found: list[Row] = []
    pending = rows[::-1]
    while pending:
        row = pending.pop()
        key = (row["user_id"], row["target_kind"], row["target_id"], row["role_id"])
        if key in seen:
            continue
        seen.add(key)
        found.append(row)
        assigned = row.get("assigned_id") or row["role_id"]
        pending += [
            {**row, "role_id": role_id, "role_name": name, "prior_id": row["role_id"], "assigned_id": assigned}
            for role_id, name in implications.get(row["role_id"], ())
        ]
    return found


def _view(ctx: Context, row: Row, names: bool) -> Json:
    kind = row["target_kind"]
    role: Json = {"id": row["role_id"]}
    user: Json = {"id": row["user_id"]}
    target: Json = {"all": True} if kind == "system" else {"id": row["target_id"]}
    if names:
        role["name"] = row["role_name"]
        user |= {"name": row["user_name"], "domain": {"id": row["user_domain_id"], "name": row["user_domain_name"]}}
        if kind != "system":
            target["name"] = row["target_name"]
        if kind == "project":
            target["domain"] = {"id": row["target_domain_id"], "name": row["target_domain_name"]}
    scope = Scope(kind, row["target_id"])
    assigned = row.get("assigned_id") or row["role_id"]
    path = f"{_scope_path(scope)}/users/{row['user_id']}/roles/{assigned}{_path_suffix(kind)}"
    shown_links = {"assignment": link(ctx, path)}
    if "prior_id" in row:
        shown_links["prior_role"] = link(ctx, f"prior_role/{row['prior_id']}/implies/{row['role_id']}")
    shown: Json = {"domain": target, "OS-INHERIT:inherited_to": "projects"} if kind == INHERITED else {kind: target}
    return {"role": role, "user": user, "scope": shown, "links": shown_links}
