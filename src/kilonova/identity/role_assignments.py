"""The list of role assignments, as they were made or as they are effective."""

from __future__ import annotations

from collections.abc import Iterator

from kilonova.http import Context, Response
from kilonova.http.errors import BadRequest
from kilonova.http.loop_yielder import collect
from kilonova.identity.api import Json, api, link, list_links
from kilonova.identity.assigned_roles import Actor, effective
from kilonova.identity.grants import grant_path
from kilonova.identity.listing import flag
from kilonova.identity.project_tree import subtree
from kilonova.identity.projects import PROJECTS
from kilonova.identity.schemas import QUERY_FLAG, QUERY_TEXT
from kilonova.identity.token import INHERITED, INHERITED_PROJECT, Scope
from kilonova.store import Reader, Row
from kilonova.store.conditions import Conditions

# Assignments as they were made, in the columns of `effective`.
_MADE = """
WITH made AS (
    SELECT user_id, NULL AS group_id, role_id, target_kind, target_id, target_kind AS made_kind, target_id AS made_id
    FROM role_assignments
    UNION ALL
    SELECT NULL, group_id, role_id, target_kind, target_id, target_kind, target_id FROM group_role_assignments
)
"""
_LIST = """
SELECT a.*, r.name AS role_name, r.domain_id AS role_domain_id, rd.name AS role_domain_name,
       u.name AS user_name, u.domain_id AS user_domain_id, ud.name AS user_domain_name,
       g.name AS group_name, g.domain_id AS group_domain_id, gd.name AS group_domain_name,
       COALESCE(p.name, d.name) AS target_name, p.domain_id AS target_domain_id, pd.name AS target_domain_name
FROM {} a
JOIN roles r ON r.id = a.role_id
LEFT JOIN domains rd ON rd.id = r.domain_id
LEFT JOIN users u ON u.id = a.user_id
LEFT JOIN domains ud ON ud.id = u.domain_id
LEFT JOIN groups g ON g.id = a.group_id
LEFT JOIN domains gd ON gd.id = g.domain_id
LEFT JOIN projects p ON a.target_kind IN ('project', 'inherited_project') AND p.id = a.target_id
LEFT JOIN domains pd ON pd.id = p.domain_id
LEFT JOIN domains d ON a.target_kind IN ('domain', 'inherited') AND d.id = a.target_id
WHERE {}
ORDER BY a.user_id, a.group_id, a.target_kind, a.target_id, r.name
"""

_INHERITED_TO = "scope.OS-INHERIT:inherited_to"
QUERY: Json = {
    "user.id": QUERY_TEXT,
    "group.id": QUERY_TEXT,
    "role.id": QUERY_TEXT,
    "scope.project.id": QUERY_TEXT,
    "scope.domain.id": QUERY_TEXT,
    "scope.system": QUERY_TEXT,
    _INHERITED_TO: QUERY_TEXT,
    "effective": QUERY_FLAG,
    "include_names": QUERY_FLAG,
    "include_subtree": QUERY_FLAG,
}
LIST_RULE, TREE_RULE = "identity:list_role_assignments", "identity:list_role_assignments_for_tree"


@api.route("GET", "/v3/role_assignments", checks=[LIST_RULE, TREE_RULE], query=QUERY)
async def index(ctx: Context) -> Response:
    """List role assignments; `effective` adds those that follow from groups, inheritance and implied roles."""
    is_effective, names = flag(ctx, "effective"), flag(ctx, "include_names")
    _check_query(ctx, is_effective)
    projects = ctx.query.get("scope.project.id")
    if projects is not None and flag(ctx, "include_subtree"):
        projects = await _authorize_tree(ctx, projects[-1])
    else:
        ctx.authorize(LIST_RULE, {"target.domain_id": ctx.token.domain_id})
    where = _where(ctx, is_effective, projects)
    beginning, table = (effective("TRUE"), "effective") if is_effective else (_MADE, "made")
    if is_effective and "user.id" in ctx.query:
        # The user is the first condition. Only assignments of this user are followed.
        beginning = effective("user_id = $1")
    rows = await ctx.db.fetch(beginning + _LIST.format(table, where.where()), *where.arguments)
    if is_effective:
        rows = await collect(_with_implied(rows, await _implications(ctx.db)))
        if (role_id := ctx.query_one("role.id")) is not None:
            rows = [row for row in rows if row["role_id"] == role_id]
    shown = await collect(_view(ctx, row, names) for row in rows)
    return Response({"role_assignments": shown, "links": list_links(ctx, "role_assignments")})


def _check_query(ctx: Context, is_effective: bool) -> None:
    scopes = [key for key in ("scope.project.id", "scope.domain.id", "scope.system") if key in ctx.query]
    if len(scopes) > 1:
        raise BadRequest("Only one of scope.project.id, scope.domain.id and scope.system is allowed.")
    if "user.id" in ctx.query and "group.id" in ctx.query:
        raise BadRequest("Only one of user.id and group.id is allowed.")
    inherited_to = ctx.query_one(_INHERITED_TO, "projects")
    if inherited_to != "projects":
        raise BadRequest(f"{_INHERITED_TO} can only be projects.")
    if is_effective and "group.id" in ctx.query:
        raise BadRequest("group.id is not allowed with effective: the effective assignments are those of users.")
    if is_effective and _INHERITED_TO in ctx.query and "scope.domain.id" in ctx.query:
        raise BadRequest(f"scope.domain.id is not allowed with effective and {_INHERITED_TO}: projects inherit.")
    if flag(ctx, "include_subtree") and "scope.project.id" not in ctx.query:
        raise BadRequest("include_subtree needs scope.project.id.")


async def _authorize_tree(ctx: Context, project_id: str) -> list[str]:
    """The project and all projects below it. Raises Forbidden if the rule for trees refuses."""
    project = await PROJECTS.find(ctx, ctx.db, project_id)
    target = PROJECTS.target(project_id, project)
    ctx.authorize(TREE_RULE, {**target, "target.domain_id": target.get("target.project.domain_id")})
    return [project_id, *(row["id"] for row in await subtree(ctx.db, project_id))]


def _where(ctx: Context, is_effective: bool, projects: list[str] | None) -> Conditions:
    where = Conditions()
    for key, column in (("user.id", "a.user_id"), ("group.id", "a.group_id"), ("role.id", "a.role_id")):
        # Any role may imply the wanted one, so effective roles are filtered after the query.
        if (value := ctx.query_one(key)) is not None and not (is_effective and key == "role.id"):
            where.add(f"{column} = ?", value)
    if projects is not None:
        where.add("a.target_kind IN ('project', 'inherited_project') AND a.target_id = ANY(?)", projects)
    if (domain_id := ctx.query_one("scope.domain.id")) is not None:
        where.add("a.target_kind IN ('domain', 'inherited') AND a.target_id = ?", domain_id)
    if "scope.system" in ctx.query:
        where.add("a.target_kind = 'system'")
    if _INHERITED_TO in ctx.query:
        where.add("a.made_kind IN ('inherited', 'inherited_project')")
    if ctx.token.domain_id is not None:
        # A token of a domain lists the assignments in this domain only.
        where.add("COALESCE(p.domain_id, d.id) = ?", ctx.token.domain_id)
    return where


async def _implications(db: Reader) -> dict[str, list[Json]]:
    """The roles that each role implies directly."""
    found: dict[str, list[Json]] = {}
    sql = """
SELECT i.prior_id, i.implied_id AS role_id, r.name AS role_name, r.domain_id AS role_domain_id,
       d.name AS role_domain_name
FROM implied_roles i JOIN roles r ON r.id = i.implied_id LEFT JOIN domains d ON d.id = r.domain_id
"""
    for row in await db.fetch(sql):
        found.setdefault(row["prior_id"], []).append(dict(row))
    return found


def _with_implied(rows: list[Row], implications: dict[str, list[Json]]) -> Iterator[Row]:
    """The assignments with those of implied roles. Roles of domains are left out: tokens do not have them."""
    seen: set[tuple[str, str, str, str]] = set()
    pending = rows[::-1]
    while pending:
        row = pending.pop()
        key = (row["user_id"], row["target_kind"], row["target_id"], row["role_id"])
        if key in seen:
            continue
        seen.add(key)
        if not row["role_domain_id"]:
            yield row
        made_role_id = row.get("made_role_id") or row["role_id"]
        pending += [
            {**row, **implied, "made_role_id": made_role_id} for implied in implications.get(row["role_id"], ())
        ]


def _view(ctx: Context, row: Row, names: bool) -> Json:
    # An effective assignment of a user may come from a group.
    actor = "group" if row["user_id"] is None else "user"
    return {
        "role": _named(row, "role", names),
        actor: _named(row, actor, names),
        "scope": _scope(row, names),
        "links": _links(ctx, row),
    }


def _links(ctx: Context, row: Row) -> Json:
    """The assignment as it was made, and the membership and implication by which it applies."""
    actor = Actor("group", row["group_id"]) if row["group_id"] is not None else Actor("user", row["user_id"])
    made_role_id = row.get("made_role_id") or row["role_id"]
    shown: Json = {"assignment": link(ctx, grant_path(actor, Scope(row["made_kind"], row["made_id"]), made_role_id))}
    if row["group_id"] is not None and row["user_id"] is not None:
        shown["membership"] = link(ctx, f"groups/{row['group_id']}/users/{row['user_id']}")
    if "prior_id" in row:
        shown["prior_role"] = link(ctx, f"prior_role/{row['prior_id']}/implies/{row['role_id']}")
    return shown


def _scope(row: Row, names: bool) -> Json:
    kind = row["target_kind"]
    if kind == "system":
        return {"system": {"all": True}}
    noun = {INHERITED: "domain", INHERITED_PROJECT: "project"}.get(kind) or str(kind)
    inherited = {"OS-INHERIT:inherited_to": "projects"} if noun != kind else {}
    return {noun: _named(row, "target", names), **inherited}


def _named(row: Row, column: str, names: bool) -> Json:
    shown: Json = {"id": row[f"{column}_id"]}
    if names:
        shown["name"] = row[f"{column}_name"]
        if row[f"{column}_domain_id"]:
            shown["domain"] = {"id": row[f"{column}_domain_id"], "name": row[f"{column}_domain_name"]}
    return shown
