"""Tags of servers: their schema and the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kilonova.http.parameter_types import Schema
from kilonova.store import Reader, Transaction

MAX_TAGS = 50
TAG_SCHEMA: Schema = {"type": "string", "minLength": 1, "maxLength": 60, "pattern": "^[^,/]*$"}
TAGS_SCHEMA: Schema = {"type": "array", "items": TAG_SCHEMA, "maxItems": MAX_TAGS}


async def of_server(reader: Reader, server_id: str) -> list[str]:
    return (await of_servers(reader, [server_id])).get(server_id, [])


async def of_servers(reader: Reader, server_ids: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    sql = "SELECT server_id, tag FROM server_tags WHERE server_id = ANY($1) ORDER BY server_id, tag"
    for row in await reader.fetch(sql, list(server_ids)):
        found.setdefault(row["server_id"], []).append(row["tag"])
    return found


async def add(tx: Transaction, server_id: str, tags: Collection[str]) -> None:
    """Tags that the server has already are ignored."""
    await tx.execute_many(
        "INSERT INTO server_tags (server_id, tag) VALUES ($1, $2) ON CONFLICT (server_id, tag) DO NOTHING",
        [(server_id, tag) for tag in tags],
    )


async def remove(tx: Transaction, server_id: str, tag: str) -> bool:
    """Returns whether the server had the tag."""
    return bool(await tx.execute("DELETE FROM server_tags WHERE server_id = $1 AND tag = $2", server_id, tag))


async def clear(tx: Transaction, server_id: str) -> None:
    await tx.execute("DELETE FROM server_tags WHERE server_id = $1", server_id)
