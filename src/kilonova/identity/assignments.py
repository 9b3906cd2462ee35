"""Role assignments: which user has which role on a project, a domain, the system, or all projects of a domain."""

from __future__ import annotations

from typing import Any

from kilonova import clock
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest, NotSupported
from kilonova.identity.core import (
    ANY_TEXT,
    QUERY_FLAG,
    Json,
    Where,
    api,
    change,
    flag,
    link,
    links,
    missing,
    row_of,
    row_to_change,
    storing,
    validator,
)
from kilonova.identity.roles import view as role_view
from kilonova.identity.token import INHERITED, SYSTEM, Scope
from kilonova.identity.tokens import revoke
from kilonova.store import Reader, Row

# Grants: the routes of all kinds of scope are alike, so they are made from one set of handlers.

# Where the rows are that a role is held on. Roles on a domain that its projects inherit are a kind of their own.
_TABLES = {"project": "projects", "domain": "domains", INHERITED: "domains"}


async def _check(db: Reader, scope: Scope, user_id: str, role_id: str | None = None) -> None:
    if scope.kind in _TABLES:
        await row_of(db, _TABLES[scope.kind], scope.id)
    await row_of(db, "users", user_id)
    if role_id is not None:
        await row_of(db, "roles", role_id)


def _key(scope: Scope, user_id: str, role_id: str) -> tuple[str, str, str, str]:
    return user_id, scope.kind, scope.id, role_id


_ONE = "user_id = $1 AND target_kind = $2 AND target_id = $3 AND role_id = $4"


async def _list(ctx: Context, scope: Scope, user_id: str) -> Answer:
    await _check(ctx.db, scope, user_id)
    rows = await ctx.db.fetch(
        "SELECT r.* FROM role_assignments a JOIN roles r ON r.id = a.role_id "
        "WHERE a.user_id = $1 AND a.target_kind = $2 AND a.target_id = $3 ORDER BY r.name",
        user_id,
        scope.kind,
        scope.id,
    )
    where = f"{_place(scope)}/users/{user_id}/roles{_ending(scope.kind)}"
    return Answer({"roles": [role_view(ctx, row) for row in rows], "links": links(ctx, where)})


async def _give(ctx: Context, scope: Scope, user_id: str, role_id: str) -> None:
    with storing("role assignment", role_id):
        async with change(ctx) as tx:
            await _check(tx, scope, user_id, role_id)
            if scope.kind in _TABLES:
                # No foreign key reaches the target, so its row is held while a role on it is stored.
                await row_to_change(tx, _TABLES[scope.kind], scope.id)
            await tx.execute(
                "INSERT INTO role_assignments (user_id, target_kind, target_id, role_id) VALUES ($1, $2, $3, $4) "
                "ON CONFLICT DO NOTHING",
                *_key(scope, user_id, role_id),
            )


async def _has(ctx: Context, scope: Scope, user_id: str, role_id: str) -> None:
    await _check(ctx.db, scope, user_id, role_id)
    if await ctx.db.fetch_value(f"SELECT 1 FROM role_assignments WHERE {_ONE}", *_key(scope, user_id, role_id)) is None:
        raise _not_given(scope, user_id, role_id)


async def _take(ctx: Context, scope: Scope, user_id: str, role_id: str) -> None:
    """What the user's tokens of this scope said is no longer true, so they end."""
    async with change(ctx) as tx:
        await _check(tx, scope, user_id, role_id)
        if not await tx.execute(f"DELETE FROM role_assignments WHERE {_ONE}", *_key(scope, user_id, role_id)):
            raise _not_given(scope, user_id, role_id)
        # An inherited role was in tokens of any project of the domain.
        subject = f"user {user_id}" if scope.kind == INHERITED else f"user {user_id} {scope.kind} {scope.id}"
        await revoke(tx, subject, clock.now(), validator(ctx).token_seconds)


def _not_given(scope: Scope, user_id: str, role_id: str) -> Exception:
    return missing("role assignment", f"role {role_id} of user {user_id} on {scope.kind} {scope.id}")


def _place(scope: Scope) -> str:
    if scope.kind == INHERITED:
        return f"OS-INHERIT/domains/{scope.id}"
    return "system" if scope.kind == "system" else f"{scope.kind}s/{scope.id}"


def _ending(kind: str) -> str:
    return "/inherited_to_projects" if kind == INHERITED else ""


def _declare(kind: Any, prefix: str, rules: Json) -> None:
    """The routes of one kind of scope below `prefix`."""

    def scope_of(params: dict[str, str]) -> Scope:
        return SYSTEM if kind == "system" else Scope(kind, *params.values())

    path, ending = f"{prefix}/users/{{user_id}}/roles", _ending(kind)

    @api.route("GET", path + ending, policy=rules["list"])
    async def list_grants(ctx: Context, user_id: str, **place: str) -> Answer:
        """List the roles a user has in this scope."""
        return await _list(ctx, scope_of(place), user_id)

    @api.route("PUT", f"{path}/{{role_id}}{ending}", policy=rules["create"], status=204)
    async def give(ctx: Context, user_id: str, role_id: str, **place: str) -> None:
        """Give a user a role in this scope."""
        await _give(ctx, scope_of(place), user_id, role_id)

    async def has(ctx: Context, user_id: str, role_id: str, **place: str) -> None:
        """Ask whether a user has a role in this scope."""
        await _has(ctx, scope_of(place), user_id, role_id)

    for method in ("GET", "HEAD"):
        api.route(method, f"{path}/{{role_id}}{ending}", policy=rules["check"], status=204)(has)

    @api.route("DELETE", f"{path}/{{role_id}}{ending}", policy=rules["revoke"], status=204)
    async def take(ctx: Context, user_id: str, role_id: str, **place: str) -> None:
        """Take a role in this scope from a user."""
        await _take(ctx, scope_of(place), user_id, role_id)


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
_GIVEN = "role_assignments"
# What is inherited is held on every project.
_EFFECTIVE = """(
    SELECT user_id, target_kind, target_id, role_id FROM role_assignments WHERE target_kind <> 'inherited'
    UNION
    SELECT i.user_id, 'project', h.id, i.role_id FROM role_assignments i JOIN projects h ON h.domain_id = i.target_id
    WHERE i.target_kind = 'inherited'
)"""

QUERY: Json = {
    "user.id": ANY_TEXT,
    "group.id": ANY_TEXT,
    "role.id": ANY_TEXT,
    "scope.project.id": ANY_TEXT,
    "scope.domain.id": ANY_TEXT,
    "scope.system": ANY_TEXT,
    "scope.OS-INHERIT:inherited_to": ANY_TEXT,
    "effective": QUERY_FLAG,
    "include_names": QUERY_FLAG,
    "include_subtree": QUERY_FLAG,
}


@api.route("GET", "/v3/role_assignments", policy="identity:list_role_assignments", query=QUERY)
async def index(ctx: Context) -> Answer:
    """List role assignments; `effective` adds what is implied or inherited, `include_names` the names."""
    effective, names = flag(ctx, "effective"), flag(ctx, "include_names")
    where = _where(ctx, effective)
    sql = _LIST.format(_EFFECTIVE if effective else _GIVEN)
    rows = await ctx.db.fetch(f"{sql}{where} ORDER BY a.user_id, a.target_kind, a.target_id, r.name", *where.values)
    if effective:
        rows = _with_implied(rows, await _implications(ctx.db))
        if (role_id := ctx.query_one("role.id")) is not None:
            rows = [row for row in rows if row["role_id"] == role_id]
    shown = [_view(ctx, row, names) for row in rows]
    return Answer({"role_assignments": shown, "links": links(ctx, "role_assignments")})


def _where(ctx: Context, effective: bool) -> Where:
    project_id, domain_id, system = (ctx.query_one(f"scope.{key}") for key in ("project.id", "domain.id", "system"))
    if sum(value is not None for value in (project_id, domain_id, system)) > 1:
        raise BadRequest("Only one of scope.project.id, scope.domain.id and scope.system can be asked for.")
    if flag(ctx, "include_subtree"):
        raise NotSupported("include_subtree is not supported.")
    where = Where()
    if (user_id := ctx.query_one("user.id")) is not None:
        where.add("a.user_id = {0}", user_id)
    # An implied role may come from any other: then the roles are sorted out afterwards.
    if (role_id := ctx.query_one("role.id")) is not None and not effective:
        where.add("a.role_id = {0}", role_id)
    if project_id is not None:
        where.add("a.target_kind = 'project' AND a.target_id = {0}", project_id)
    if domain_id is not None:
        where.add("a.target_kind IN ('domain', 'inherited') AND a.target_id = {0}", domain_id)
    if system is not None:
        where.conditions.append("a.target_kind = 'system'")
    if (inherited_to := ctx.query_one("scope.OS-INHERIT:inherited_to")) is not None:
        if inherited_to != "projects":
            raise BadRequest("scope.OS-INHERIT:inherited_to can only be projects.")
        where.conditions.append("a.target_kind = 'inherited'")
    if "group.id" in ctx.query:
        where.conditions.append("1 = 0")
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
    waiting = rows[::-1]
    while waiting:
        row = waiting.pop()
        key = (row["user_id"], row["target_kind"], row["target_id"], row["role_id"])
        if key in seen:
            continue
        seen.add(key)
        found.append(row)
        given = row.get("given_id") or row["role_id"]
        waiting += [
            {**row, "role_id": role_id, "role_name": name, "prior_id": row["role_id"], "given_id": given}
            for role_id, name in implications.get(row["role_id"], ())
        ]
    return found


def _view(ctx: Context, row: Row, names: bool) -> Json:
    kind = row["target_kind"]
    role: Json = {"id": row["role_id"]}
    user: Json = {"id": row["user_id"]}
    place: Json = {"all": True} if kind == "system" else {"id": row["target_id"]}
    if names:
        role["name"] = row["role_name"]
        user |= {"name": row["user_name"], "domain": {"id": row["user_domain_id"], "name": row["user_domain_name"]}}
        if kind != "system":
            place["name"] = row["target_name"]
        if kind == "project":
            place["domain"] = {"id": row["target_domain_id"], "name": row["target_domain_name"]}
    scope = Scope(kind, row["target_id"])
    given = row.get("given_id") or row["role_id"]
    held = f"{_place(scope)}/users/{row['user_id']}/roles/{given}{_ending(kind)}"
    shown_links = {"assignment": link(ctx, held)}
    if "prior_id" in row:
        shown_links["prior_role"] = link(ctx, f"prior_role/{row['prior_id']}/implies/{row['role_id']}")
    shown: Json = {"domain": place, "OS-INHERIT:inherited_to": "projects"} if kind == INHERITED else {kind: place}
    return {"role": role, "user": user, "scope": shown, "links": shown_links}
