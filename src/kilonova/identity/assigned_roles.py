"""Assignments of roles to users and groups, and the assignments that follow from them.

A user has the roles of its groups. An assignment that projects inherit is effective on each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kilonova.http.errors import Forbidden
from kilonova.identity.token import INHERITED, INHERITED_PROJECT, Scope
from kilonova.store import Reader, Row, Transaction

_TABLES = {"user": "role_assignments", "group": "group_role_assignments"}


class Actor(NamedTuple):
    """The user or group to which a role is assigned."""

    kind: Literal["user", "group"]
    id: str

    @property
    def table(self) -> str:
        """The table of its assignments."""
        return _TABLES[self.kind]

    @property
    def column(self) -> str:
        return f"{self.kind}_id"


# Assignments of users as they were made: to the user, or to a group of the user.
_OF_USERS = """
SELECT user_id, NULL AS group_id, target_kind, target_id, role_id FROM role_assignments
UNION ALL
SELECT m.user_id, a.group_id, a.target_kind, a.target_id, a.role_id
FROM group_role_assignments a JOIN group_members m ON m.group_id = a.group_id
"""


def effective(condition: str) -> str:
    """The beginning of a statement, with the table `effective`: where users have which roles.

    `condition` selects the assignments as they were made, by the columns of `_OF_USERS`. `made_kind` and `made_id` are
    the target of the assignment from which a row follows.
    """
    return f"""
WITH RECURSIVE held AS (
    SELECT * FROM ({_OF_USERS}) a WHERE {condition}
),
below(root_id, project_id) AS (
    SELECT h.target_id, p.id FROM held h JOIN projects p ON p.parent_id = h.target_id
    WHERE h.target_kind = '{INHERITED_PROJECT}'
    UNION
    SELECT b.root_id, p.id FROM below b JOIN projects p ON p.parent_id = b.project_id
),
effective AS (
    SELECT user_id, group_id, role_id, target_kind, target_id, target_kind AS made_kind, target_id AS made_id
    FROM held WHERE target_kind NOT IN ('{INHERITED}', '{INHERITED_PROJECT}')
    UNION ALL
    SELECT h.user_id, h.group_id, h.role_id, 'project', p.id, h.target_kind, h.target_id
    FROM held h JOIN projects p ON p.domain_id = h.target_id WHERE h.target_kind = '{INHERITED}'
    UNION ALL
    SELECT h.user_id, h.group_id, h.role_id, 'project', b.project_id, h.target_kind, h.target_id
    FROM held h JOIN below b ON b.root_id = h.target_id WHERE h.target_kind = '{INHERITED_PROJECT}'
)
"""


# Ids and names of the roles that the user $1 has in the scope $2, $3: assigned, inherited or implied. Tokens have no
# roles of domains, only what these imply.
_SELECT_ROLES = f"""
WITH RECURSIVE lineage(id, domain_id, parent_id) AS (
    SELECT id, domain_id, parent_id FROM projects WHERE $2 = 'project' AND id = $3
    UNION ALL
    SELECT p.id, p.domain_id, p.parent_id FROM lineage l JOIN projects p ON p.id = l.parent_id
),
targets(kind, id) AS (
    SELECT CAST($2 AS TEXT), CAST($3 AS TEXT)
    UNION ALL
    SELECT '{INHERITED}', domain_id FROM lineage WHERE id = $3
    UNION ALL
    SELECT '{INHERITED_PROJECT}', parent_id FROM lineage WHERE parent_id IS NOT NULL
),
held(role_id) AS (
    SELECT a.role_id FROM targets t JOIN role_assignments a ON a.target_kind = t.kind AND a.target_id = t.id
    WHERE a.user_id = $1
    UNION
    SELECT a.role_id FROM targets t JOIN group_role_assignments a ON a.target_kind = t.kind AND a.target_id = t.id
    JOIN group_members m ON m.group_id = a.group_id
    WHERE m.user_id = $1
    UNION
    SELECT i.implied_id FROM implied_roles i JOIN held ON held.role_id = i.prior_id
)
SELECT r.id, r.name FROM held JOIN roles r ON r.id = held.role_id WHERE r.domain_id = '' ORDER BY r.name
"""


async def effective_roles(db: Reader, user_id: str, scope: Scope) -> tuple[tuple[str, str], ...]:
    """Id and name of every role that the user has in the scope: assigned, inherited or implied."""
    rows = await db.fetch(_SELECT_ROLES, user_id, scope.kind, scope.id)
    return tuple((row["id"], row["name"]) for row in rows)


class RoleNotHeld(Exception):
    """A body names a role, by this id or name, that is not one of the held roles."""


def find_references(references: Sequence[Mapping[str, str]], held: Sequence[tuple[str, str]]) -> list[str]:
    """The ids of the roles that a body names by id or name. `held` are ids and names. Raises RoleNotHeld."""
    by_id, by_name = dict(held), {name: item_id for item_id, name in held}
    found: dict[str, None] = {}
    for reference in references:
        item_id = reference["id"] if "id" in reference else by_name.get(reference["name"], "")
        if item_id not in by_id or reference.get("name", by_id[item_id]) != by_id[item_id]:
            raise RoleNotHeld(reference.get("id") or reference["name"])
        found[item_id] = None
    return list(found)


async def accessible(db: Reader, user_id: str, kind: Literal["project", "domain"]) -> list[Row]:
    """The enabled projects or domains where the user has a role, by name."""
    return await db.fetch(
        f"{effective('user_id = $1')} SELECT t.* FROM {kind}s t WHERE t.enabled"
        " AND t.id IN (SELECT target_id FROM effective WHERE target_kind = $2) ORDER BY t.name, t.id",
        user_id,
        kind,
    )


async def delete_assignments(tx: Transaction, condition: str, *arguments: Any) -> None:
    """Delete the assignments of users and of groups."""
    for table in _TABLES.values():
        await tx.execute(f"DELETE FROM {table} WHERE {condition}", *arguments)


def check_domain(role: Row, domain_id: str | None) -> None:
    """A role of a domain may be used in this domain only."""
    if role["domain_id"] not in ("", domain_id):
        raise Forbidden(f"The role {role['id']} belongs to the domain {role['domain_id']} and cannot be used outside.")
