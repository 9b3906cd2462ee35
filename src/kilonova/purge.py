"""Purges rows that have served their time: deleted servers, finished operations, attempts, messages, expired tokens.

docs/operations.md says what each table keeps. A purge reads a window of rows at a time in the order of the primary key,
and deletes the due ones in a transaction of its own. So neither a full table nor a long list of rows holds up writers.
The transaction checks the rows once more, because an operation may have begun since they were read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kilonova import clock
from kilonova.compute import operation_kinds as kinds
from kilonova.compute.migrations.model import MIGRATION, RESIZE
from kilonova.config import Retention
from kilonova.hosts.registry import COMPUTE
from kilonova.operations.events import STALE_AFTER_SECONDS
from kilonova.placement.changes import DELETED_RETENTION_SECONDS
from kilonova.store import Database, Reader, Row, Transaction

WINDOW_ROWS = 200
DAY_SECONDS = 86400.0
# An expired application credential is kept for this time, so that its user sees why a program cannot log in.
EXPIRED_CREDENTIAL_SECONDS = 30 * DAY_SECONDS

# $1 is the time before which rows of the table are due, $2 that of deleted servers.
_SERVER_IS_DUE = "EXISTS (SELECT 1 FROM servers s WHERE s.id IN ({}) AND s.deleted AND s.terminated_at < $2)"
_UNFINISHED = """EXISTS (SELECT 1 FROM operations u WHERE u.finished_at IS NULL AND u.server_id = {0})
    OR EXISTS (SELECT 1 FROM operations u WHERE u.finished_at IS NULL AND u.guest_id IS NOT NULL AND u.guest_id = {0})
"""

_ATTEMPT = f"""
(t.created_at < $1 OR {_SERVER_IS_DUE.format("t.server_id")})
AND NOT EXISTS (SELECT 1 FROM operations u WHERE u.id = t.operation_id AND u.finished_at IS NULL)
"""
# Unfinished operations on a server may look for its earlier ones. An unconfirmed resize is needed for its revert, and a
# soft delete for the restore. An offload or deletion of a shelved server keeps its state from being reset to active,
# which would delete the image.
_OPERATION = f"""
t.finished_at IS NOT NULL AND (t.finished_at < $1 OR {_SERVER_IS_DUE.format("t.server_id, t.guest_id")})
AND NOT ({_UNFINISHED.format("t.server_id")} OR {_UNFINISHED.format("t.guest_id")})
AND NOT EXISTS (SELECT 1 FROM consumers c WHERE c.uuid = t.id)
AND NOT EXISTS (SELECT 1 FROM servers s WHERE s.id = t.server_id AND NOT s.deleted AND (
    t.kind = '{kinds.SOFT_DELETE}'
    OR (s.shelved_at <= t.created_at AND t.kind IN ('{kinds.SHELVE_OFFLOAD}', '{kinds.DELETE}'))
    OR (t.state = 'done' AND EXISTS (
        SELECT 1 FROM moves m
        WHERE m.operation_id = t.id AND m.type IN ('{MIGRATION}', '{RESIZE}') AND m.outcome IS NULL))))
"""
_SERVER = f"""
t.deleted AND t.terminated_at < $1 AND NOT ({_UNFINISHED.format("t.id")})
AND NOT EXISTS (SELECT 1 FROM consumers c WHERE c.uuid = t.id)
AND NOT EXISTS (SELECT 1 FROM volume_attachments a WHERE a.server_id = t.id)
"""
_SERVER_HAS_NOTHING_LEFT = """
NOT EXISTS (SELECT 1 FROM operations o WHERE o.server_id = t.id)
AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.server_id = t.id)
"""


class Rule(NamedTuple):
    """Which rows `t` of a table are due, and the rows of other tables that go with them.

    `key` is the primary key, which is greater than `first`. `setting` has the days that rows are kept. Rows without a
    setting have expired, or are kept for `seconds`. `children` are tables and their columns that refer to `identity`.
    """

    table: str
    key: str
    first: int | str
    due: str
    setting: str = ""
    seconds: float = 0.0
    identity: str = ""
    children: tuple[tuple[str, str], ...] = ()
    # A further condition of the deletion. A dry run does not check it, because it holds after the earlier rules.
    when_deleted: str = "TRUE"

    @property
    def depends_on_servers(self) -> bool:
        """Whether rows are due together with their server."""
        return "$2" in self.due


# In this order, so that everything that refers to a server goes before it.
RULES = (
    Rule("attempts", "id", -1, _ATTEMPT, "attempt_days"),
    Rule(
        "operations",
        "seq",
        -1,
        _OPERATION,
        "operation_days",
        identity="id",
        children=(("moves", "operation_id"), ("operation_steps", "operation_id"), ("operation_waits", "operation_id")),
    ),
    Rule(
        "servers",
        "id",
        "",
        _SERVER,
        "server_days",
        children=(
            ("block_devices", "server_id"),
            ("server_tags", "server_id"),
            ("server_group_members", "server_id"),
            ("console_tokens", "server_id"),
        ),
        when_deleted=_SERVER_HAS_NOTHING_LEFT,
    ),
    Rule("volume_messages", "id", "", "t.created_at < $1", "message_days"),
    # A host name of a container is often used once.
    Rule("services", "id", -1, f"t.program <> '{COMPUTE}' AND t.last_seen_at < $1", "service_days"),
    Rule("revocations", "subject", "", "t.expires_at < $1"),
    # With a trust, the database deletes the trusts that pass it on.
    Rule("trusts", "id", "", "t.expires_at < $1"),
    Rule(
        "application_credentials",
        "id",
        "",
        "t.expires_at < $1",
        seconds=EXPIRED_CREDENTIAL_SECONDS,
        children=(("application_credential_rules", "application_credential_id"),),
    ),
    Rule("console_tokens", "hash", "", "t.expires_at < $1"),
    Rule("operation_events", "seq", -1, "t.created_at < $1", seconds=STALE_AFTER_SECONDS),
    # The last row stays: schedulers' numbers continue from it.
    Rule(
        "departed_providers",
        "id",
        -1,
        "t.gone_at < $1 AND t.change < (SELECT MAX(change) FROM departed_providers)",
        seconds=DELETED_RETENTION_SECONDS,
    ),
)
TABLES = tuple(rule.table for rule in RULES)


async def purge(
    db: Database,
    retention: Retention,
    *,
    tables: Collection[str] = TABLES,
    older_than_days: float | None = None,
    dry_run: bool = False,
) -> dict[str, int]:
    """Delete the due rows of these tables. Returns how many rows of each table were, or would be, deleted.

    `older_than_days` replaces the days of all settings. Operations and attempts of a due server go with the server.
    """
    now = clock.now()
    until = {rule.table: _due_before(rule, retention, older_than_days, now, tables) for rule in RULES}
    counts: dict[str, int] = {}
    for rule in RULES:
        if rule.table in tables or ("servers" in tables and rule.depends_on_servers):
            await _apply(db, rule, until, counts, dry_run=dry_run)
    return counts


def _due_before(rule: Rule, retention: Retention, days: float | None, now: float, tables: Collection[str]) -> float:
    """The time before which rows are due. Minus infinity: none are."""
    if rule.table not in tables:
        return -math.inf
    if not rule.setting:
        return now - rule.seconds
    kept: float = getattr(retention, rule.setting) if days is None else days
    return now - kept * DAY_SECONDS if kept >= 0 else -math.inf


async def _apply(
    db: Database, rule: Rule, until: Mapping[str, float], counts: dict[str, int], *, dry_run: bool
) -> None:
    times = [until[rule.table], *([until["servers"]] if rule.depends_on_servers else [])]
    columns = f"t.{rule.key} AS key, t.{rule.identity or rule.key} AS identity"
    argument = f"${len(times) + 1}"
    window = f"""
    SELECT {columns}, ({rule.due}) AS is_due FROM {rule.table} t
    WHERE t.{rule.key} > {argument} ORDER BY t.{rule.key} LIMIT {WINDOW_ROWS}
    """
    still_due = f"""
    SELECT {columns} FROM {rule.table} t
    WHERE t.{rule.key} = ANY({argument}) AND {rule.due} AND {rule.when_deleted}
    """
    last = rule.first
    _add(counts, rule.table, 0)
    while rows := await db.fetch(window, *times, last):
        last = rows[-1]["key"]
        due = [row for row in rows if row["is_due"]]
        if due and dry_run:
            await _count(db, rule, due, counts)
        elif due:
            async with db.transaction() as tx:
                await _delete(tx, rule, await tx.fetch(still_due, *times, [row["key"] for row in due]), counts)
        await asyncio.sleep(0)


async def _count(db: Reader, rule: Rule, due: list[Row], counts: dict[str, int]) -> None:
    _add(counts, rule.table, len(due))
    for table, column in rule.children:
        sql = f"SELECT COUNT(*) FROM {table} WHERE {column} = ANY($1)"
        _add(counts, table, await db.fetch_value(sql, [row["identity"] for row in due]))


async def _delete(tx: Transaction, rule: Rule, due: list[Row], counts: dict[str, int]) -> None:
    for table, column in rule.children:
        sql = f"DELETE FROM {table} WHERE {column} = ANY($1)"
        _add(counts, table, await tx.execute(sql, [row["identity"] for row in due]))
    sql = f"DELETE FROM {rule.table} WHERE {rule.key} = ANY($1)"
    _add(counts, rule.table, await tx.execute(sql, [row["key"] for row in due]))


def _add(counts: dict[str, int], table: str, number: int) -> None:
    counts[table] = counts.get(table, 0) + number
