"""Resource locks in the database. A lock forbids one action on a share or an access rule until the lock is deleted."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.http.errors import Conflict, Forbidden, NotFound
from kilonova.ids import new_id
from kilonova.store import Reader, Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import Record

SHARE, RULE = "share", "access_rule"
DELETE, SHOW = "delete", "show"
GET = "resource_lock:get"


class Lock(Record, frozen=True):
    """`context` says who made the lock: a `service`, an `admin` or a `user`."""

    table: ClassVar[str] = "share_locks"

    id: str
    project_id: str
    user_id: str
    context: str
    resource_type: str
    resource_id: str
    action: str
    created_at: float
    updated_at: float
    reason: str | None = None


def not_found(lock_id: str) -> NotFound:
    return NotFound(f"Resource lock {lock_id[:80]} could not be found.")


def target(lock: Lock) -> dict[str, object]:
    return {"project_id": lock.project_id, "user_id": lock.user_id}


async def find(ctx: Context, reader: Reader, lock_id: str, *, rule: str = GET) -> Lock:
    """The lock. Raises 404 if the caller may not see it, and 403 if the rule forbids the action."""
    lock = Lock.decode_optional(await reader.fetch_one("SELECT * FROM share_locks WHERE id = $1", lock_id))
    if lock is None or not ctx.may(GET, target(lock)):
        raise not_found(lock_id)
    ctx.authorize(rule, target(lock))
    return lock


async def insert(
    ctx: Context, tx: Transaction, resource_type: str, resource_id: str, action: str, reason: str | None
) -> Lock:
    """Lock the action for the caller. A second lock of the same user with the same reason is refused (409)."""
    lock = Lock(
        id=new_id(),
        project_id=ctx.token.project_id or "",
        user_id=ctx.token.user_id,
        context=_context(ctx),
        resource_type=resource_type,
        resource_id=resource_id,
        action=action,
        reason=reason,
        created_at=ctx.now,
        updated_at=ctx.now,
    )
    if any(
        found.user_id == lock.user_id and found.reason == reason for found in await of_resource(tx, resource_id, action)
    ):
        raise Conflict(
            f"The {resource_type} {resource_id} already has a lock of this user for the action {action} with the same"
            " reason."
        )
    await insert_row(tx, Lock.table, lock.encode())
    return lock


async def of_resource(reader: Reader, resource_id: str, action: str) -> list[Lock]:
    sql = "SELECT * FROM share_locks WHERE resource_id = $1 AND action = $2 ORDER BY created_at, id"
    return Lock.decode_all(await reader.fetch(sql, resource_id, action))


async def check_unlocked(reader: Reader, resource_id: str, action: str) -> None:
    """Refuse (403) an action that a lock forbids."""
    if found := await of_resource(reader, resource_id, action):
        reasons = "; ".join(lock.reason for lock in found if lock.reason)
        raise Forbidden(
            f"Resource lock/s [{', '.join(lock.id for lock in found)[:500]}] prevent {action} action."
            + (f" {reasons[:500]}" if reasons else "")
        )


def check_owner(ctx: Context, lock: Lock) -> None:
    """Refuse (403) to change a lock of a service or an administrator, unless the caller is one of these."""
    if lock.context != "user" and not ctx.may("service_or_admin"):
        raise Forbidden(
            f"Resource lock {lock.id} has the lock_context {lock.context}: only services and administrators can change"
            " or delete it."
        )


async def delete_all(tx: Transaction, resource_id: str) -> None:
    await tx.execute("DELETE FROM share_locks WHERE resource_id = $1", resource_id)


def _context(ctx: Context) -> str:
    if ctx.may("context_is_admin"):
        return "admin"
    return "service" if "service" in ctx.token.roles else "user"
