"""Transfers in the database. Only a hash of the key is stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any

from kilonova.store import Reader, Row, Transaction
from kilonova.store.insert import insert_row


def new_key() -> str:
    return secrets.token_hex(16)


async def create(tx: Transaction, values: dict[str, Any], key: str) -> Row:
    """Replaces an earlier transfer of the volume, which could not be accepted any more."""
    await tx.execute("DELETE FROM volume_transfers WHERE volume_id = $1", values["volume_id"])
    salt = secrets.token_hex(8)
    row = {**values, "salt": salt, "key_hash": _hash(salt, key)}
    return await insert_row(tx, "volume_transfers", row)


def has_key(row: Row, key: str) -> bool:
    return hmac.compare_digest(row["key_hash"], _hash(row["salt"], key))


async def get(reader: Reader, transfer_id: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM volume_transfers WHERE id = $1", transfer_id)


async def of_project(reader: Reader, project_id: str | None) -> list[Row]:
    """Transfers of the project, or (None) of all projects."""
    return await reader.fetch(
        "SELECT * FROM volume_transfers WHERE CAST($1 AS TEXT) IS NULL OR project_id = $1", project_id
    )


async def delete(tx: Transaction, transfer_id: str) -> bool:
    """False if the transfer was deleted already."""
    return await tx.execute("DELETE FROM volume_transfers WHERE id = $1", transfer_id) > 0


async def lock_snapshots(tx: Transaction, volume_id: str) -> list[Row]:
    """Lock and return the snapshots of the volume."""
    return await tx.fetch("SELECT * FROM volume_snapshots WHERE volume_id = $1 ORDER BY id FOR UPDATE", volume_id)


async def change_owner(
    tx: Transaction, volume_id: str, project_id: str, user_id: str, now: float, *, with_snapshots: bool
) -> None:
    owner = "SET project_id = $2, user_id = $3, updated_at = $4"
    await tx.execute(f"UPDATE volumes {owner} WHERE id = $1", volume_id, project_id, user_id, now)
    if with_snapshots:
        await tx.execute(f"UPDATE volume_snapshots {owner} WHERE volume_id = $1", volume_id, project_id, user_id, now)


def _hash(salt: str, key: str) -> str:
    """One round is enough because keys are long and random."""
    return hmac.new(salt.encode(), key.encode(), hashlib.sha256).hexdigest()
