"""Transfers in the database. Only a hash of the key is stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import ClassVar

from msgspec import Struct

from kilonova.ids import new_id
from kilonova.store import Reader, Transaction
from kilonova.store.insert import insert_row
from kilonova.store.records import Record
from kilonova.volume.snapshots.model import Snapshot
from kilonova.volume.volumes.model import Volume


class Transfer(Record, frozen=True):
    table: ClassVar[str] = "volume_transfers"

    id: str
    volume_id: str
    project_id: str
    salt: str
    key_hash: str
    no_snapshots: bool
    created_at: float
    name: str | None = None


class NewTransfer(Struct, frozen=True):
    transfer: Transfer
    auth_key: str


async def create(
    tx: Transaction, volume: Volume, name: str | None, created_at: float, *, no_snapshots: bool
) -> NewTransfer:
    """Replaces an earlier transfer of the volume, which could not be accepted any more."""
    await tx.execute("DELETE FROM volume_transfers WHERE volume_id = $1", volume.id)
    salt, key = secrets.token_hex(8), secrets.token_hex(16)
    transfer = Transfer(
        id=new_id(),
        volume_id=volume.id,
        project_id=volume.project_id,
        name=name,
        salt=salt,
        key_hash=_hash(salt, key),
        no_snapshots=no_snapshots,
        created_at=created_at,
    )
    await insert_row(tx, Transfer.table, transfer.encode())
    return NewTransfer(transfer, key)


def has_key(transfer: Transfer, key: str) -> bool:
    return hmac.compare_digest(transfer.key_hash, _hash(transfer.salt, key))


async def get(reader: Reader, transfer_id: str) -> Transfer | None:
    row = await reader.fetch_one("SELECT * FROM volume_transfers WHERE id = $1", transfer_id)
    return Transfer.decode_optional(row)


async def of_project(reader: Reader, project_id: str | None) -> list[Transfer]:
    """Transfers of the project, or (None) of all projects."""
    sql = "SELECT * FROM volume_transfers WHERE CAST($1 AS TEXT) IS NULL OR project_id = $1"
    return Transfer.decode_all(await reader.fetch(sql, project_id))


async def delete(tx: Transaction, transfer_id: str) -> bool:
    """False if the transfer was deleted already."""
    return await tx.execute("DELETE FROM volume_transfers WHERE id = $1", transfer_id) > 0


async def lock_snapshots(tx: Transaction, volume_id: str) -> list[Snapshot]:
    """Lock and return the snapshots of the volume."""
    sql = "SELECT * FROM volume_snapshots WHERE volume_id = $1 ORDER BY id FOR UPDATE"
    return Snapshot.decode_all(await tx.fetch(sql, volume_id))


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
