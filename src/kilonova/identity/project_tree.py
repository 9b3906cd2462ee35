"""The tree of projects below a domain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kilonova.http import Context
from kilonova.http.errors import BadRequest, Forbidden
from kilonova.identity.api import Json
from kilonova.identity.listing import flag
from kilonova.store import Reader, Row, Transaction

# As in Keystone's default settings, without the domain.
MAX_LEVELS = 5
QUERY_KEYS = ("parents_as_list", "parents_as_ids", "subtree_as_list", "subtree_as_ids")

_PARENTS = """
WITH RECURSIVE above(id, level) AS (
    SELECT parent_id, 1 FROM projects WHERE id = $1
    UNION ALL
    SELECT p.parent_id, a.level + 1 FROM above a JOIN projects p ON p.id = a.id
)
SELECT p.* FROM above a JOIN projects p ON p.id = a.id ORDER BY a.level
"""
_SUBTREE = """
WITH RECURSIVE below(id, level) AS (
    SELECT id, 1 FROM projects WHERE parent_id = $1
    UNION ALL
    SELECT p.id, b.level + 1 FROM below b JOIN projects p ON p.parent_id = b.id
)
SELECT p.* FROM below b JOIN projects p ON p.id = b.id ORDER BY b.level, p.name, p.id
"""


async def parents(db: Reader, project_id: str) -> list[Row]:
    """The projects above a project, the nearest first."""
    return await db.fetch(_PARENTS, project_id)


async def subtree(db: Reader, project_id: str) -> list[Row]:
    """The projects below a project, children before grandchildren."""
    return await db.fetch(_SUBTREE, project_id)


async def relatives(ctx: Context, row: Row, brief: Callable[[Context, Row], Json | None]) -> Json:
    """The parents and the subtree of a project, as its query requests them."""
    shown: Json = {}
    for key, find in (("parents", parents), ("subtree", subtree)):
        as_list, as_ids = flag(ctx, f"{key}_as_list"), flag(ctx, f"{key}_as_ids")
        if as_list and as_ids:
            raise BadRequest(f"Only one of {key}_as_list and {key}_as_ids is allowed.")
        if as_list:
            entries = [brief(ctx, found) for found in await find(ctx.db, row["id"])]
            shown[key] = [entry for entry in entries if entry is not None]
        elif as_ids:
            found = await find(ctx.db, row["id"])
            shown[key] = _parent_ids(row, found) if key == "parents" else _subtree_ids(row["id"], found)
    return shown


def _parent_ids(row: Row, above: Iterable[Row]) -> Json:
    """Nested from the nearest parent to the domain."""
    nested: Json | None = None
    for parent_id in (row["domain_id"], *[found["id"] for found in reversed(list(above))]):
        nested = {parent_id: nested}
    assert nested is not None
    return nested


def _subtree_ids(project_id: str, below: list[Row]) -> Json | None:
    nested: dict[str, Json] = {project_id: {}}
    for found in below:
        nested[found["id"]] = nested[found["parent_id"]][found["id"]] = {}
    return _with_null_leaves(nested[project_id])


def _with_null_leaves(nested: Json) -> Json | None:
    return {key: _with_null_leaves(value) for key, value in nested.items()} or None


async def check_parent(tx: Transaction, parent_id: str, *, is_enabled: bool) -> None:
    """Check that a project may get a child, which is enabled or not. Locks the project, so that it stays enabled."""
    parent = await tx.fetch_one("SELECT enabled FROM projects WHERE id = $1 FOR UPDATE", parent_id)
    if parent is not None and is_enabled and not parent["enabled"]:
        raise Forbidden(f"The parent project {parent_id} is disabled, so its child cannot be enabled.")
    if len(await parents(tx, parent_id)) + 2 > MAX_LEVELS:
        raise Forbidden(f"The project {parent_id} cannot have children: a tree has at most {MAX_LEVELS} levels.")


async def check_enabled(tx: Transaction, row: Row, is_enabled: bool) -> None:
    """Check that a project may be enabled or disabled: all parents of an enabled project are enabled."""
    others = await parents(tx, row["id"]) if is_enabled else await subtree(tx, row["id"])
    if is_enabled and not all(found["enabled"] for found in others):
        raise Forbidden(f"The project {row['id']} cannot be enabled: it has a disabled parent.")
    if not is_enabled and any(found["enabled"] for found in others):
        raise Forbidden(f"The project {row['id']} cannot be disabled: a project below it is enabled.")
