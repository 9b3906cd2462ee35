"""Key pairs in the database. Private keys are not stored."""

from __future__ import annotations

from collections.abc import Mapping

from kilonova import clock
from kilonova.store import Reader, Row, Transaction


async def get(reader: Reader, user_id: str, name: str) -> Row | None:
    return await reader.fetch_one("SELECT * FROM keypairs WHERE user_id = $1 AND name = $2", user_id, name)


async def page(reader: Reader, user_id: str, marker: str, limit: int | None) -> list[Row]:
    """Key pairs after the marker, ordered by name; all of them without a limit."""
    sql = "SELECT * FROM keypairs WHERE user_id = $1 AND name > $2 ORDER BY name"
    if limit is None:
        return await reader.fetch(sql, user_id, marker)
    return await reader.fetch(f"{sql} LIMIT $3", user_id, marker, limit)


async def count(tx: Transaction, user_id: str) -> int:
    """The number of key pairs of the user. No other transaction can add one until `tx` ends."""
    await tx.lock(f"keypairs:{user_id}")
    found: int = await tx.fetch_value("SELECT COUNT(*) FROM keypairs WHERE user_id = $1", user_id)
    return found


async def create(tx: Transaction, values: Mapping[str, str]) -> Row | None:
    """None if the user has a key pair with this name."""
    return await tx.fetch_one(
        """
        INSERT INTO keypairs (user_id, name, type, fingerprint, public_key, created_at)
        VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING *
        """,
        values["user_id"],
        values["name"],
        values["type"],
        values["fingerprint"],
        values["public_key"],
        clock.now(),
    )


async def delete(tx: Transaction, user_id: str, name: str) -> bool:
    return await tx.execute("DELETE FROM keypairs WHERE user_id = $1 AND name = $2", user_id, name) > 0
