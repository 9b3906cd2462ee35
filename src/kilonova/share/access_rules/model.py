"""Access rules in the database."""

from __future__ import annotations

from typing import ClassVar

from kilonova.http import Context
from kilonova.http.errors import NotFound
from kilonova.share.locks import model as locks
from kilonova.share.shares import model as shares
from kilonova.share.shares.model import Share
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record

GET = "share_access_rule:get"


class AccessRule(Record, frozen=True):
    table: ClassVar[str] = "share_access_rules"

    id: str
    share_id: str
    access_type: str
    access_to: str
    access_level: str
    metadata: dict[str, str]
    created_at: float
    updated_at: float


def not_found(rule_id: str) -> NotFound:
    return NotFound(f"Share access rule {rule_id[:80]} could not be found.")


async def get(reader: Reader, rule_id: str, *, lock: bool = False) -> AccessRule | None:
    sql = "SELECT * FROM share_access_rules WHERE id = $1"
    return AccessRule.decode_optional(await reader.fetch_one(f"{sql} FOR UPDATE" if lock else sql, rule_id))


async def find(
    ctx: Context, reader: Reader, rule_id: str, *, rule: str = GET, lock: bool = False
) -> tuple[AccessRule, Share]:
    """The access rule and its share.

    Raises 404 if the caller may not see the share, and 403 if the policy `rule` forbids the action.
    """
    found = await get(reader, rule_id, lock=lock)
    share = None if found is None else await shares.get(reader, found.share_id)
    if found is None or share is None or not ctx.may(shares.SHOW, shares.target(share)):
        raise not_found(rule_id)
    ctx.authorize(rule, shares.target(share))
    return found, share


async def of_share(reader: Reader, share_id: str) -> list[AccessRule]:
    sql = "SELECT * FROM share_access_rules WHERE share_id = $1 ORDER BY created_at, id"
    return AccessRule.decode_all(await reader.fetch(sql, share_id))


async def hidden(ctx: Context, reader: Reader, rules: list[AccessRule]) -> set[str]:
    """The ids of the rules whose `access_to` a lock hides from the caller.

    Only the owner of the lock and administrators see it.
    """
    found = [(rule.id, lock) for rule in rules for lock in await locks.of_resource(reader, rule.id, locks.SHOW)]
    return {ident for ident, lock in found if lock.user_id != ctx.token.user_id and not ctx.may("context_is_admin")}


async def delete(tx: Transaction, rule_id: str) -> None:
    """Delete the access rule with its locks."""
    await locks.delete_all(tx, rule_id)
    await tx.execute("DELETE FROM share_access_rules WHERE id = $1", rule_id)
