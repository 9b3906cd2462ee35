"""Key pairs in the database. Private keys are not stored."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from kilonova import clock
from kilonova.store import Reader, Transaction
from kilonova.store.records import Record


class KeyPair(Record, frozen=True):
    table: ClassVar[str] = "keypairs"

    id: int
    user_id: str
    name: str
    type: str
    fingerprint: str
    public_key: str
    created_at: float


class NewKeyPair(Struct, frozen=True):
    """`private_key` is None for an imported public key."""

    user_id: str
    name: str
    type: str
    fingerprint: str
    public_key: str
    private_key: str | None


async def get(reader: Reader, user_id: str, name: str) -> KeyPair | None:
    sql = "SELECT * FROM keypairs WHERE user_id = $1 AND name = $2"
    return KeyPair.decode_optional(await reader.fetch_one(sql, user_id, name))


async def page(reader: Reader, user_id: str, marker: str, limit: int | None) -> list[KeyPair]:
    """Key pairs after the marker, ordered by name; all of them without a limit."""
    sql = "SELECT * FROM keypairs WHERE user_id = $1 AND name > $2 ORDER BY name"
    if limit is None:
        return KeyPair.decode_all(await reader.fetch(sql, user_id, marker))
    return KeyPair.decode_all(await reader.fetch(f"{sql} LIMIT $3", user_id, marker, limit))


async def count(tx: Transaction, user_id: str) -> int:
    """The number of key pairs of the user. No other transaction can add one until `tx` ends."""
    await tx.lock(f"keypairs:{user_id}")
    found: int = await tx.fetch_value("SELECT COUNT(*) FROM keypairs WHERE user_id = $1", user_id)
    return found


async def create(tx: Transaction, new: NewKeyPair) -> bool:
    """Insert the key pair without its private key. False if the user has a key pair with this name."""
    inserted = await tx.execute(
        """
        INSERT INTO keypairs (user_id, name, type, fingerprint, public_key, created_at)
        VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING
        """,
        new.user_id,
        new.name,
        new.type,
        new.fingerprint,
        new.public_key,
        clock.now(),
    )
    return inserted > 0


async def delete(tx: Transaction, user_id: str, name: str) -> bool:
    return await tx.execute("DELETE FROM keypairs WHERE user_id = $1 AND name = $2", user_id, name) > 0
