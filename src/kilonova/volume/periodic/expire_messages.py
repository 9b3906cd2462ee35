"""Deletes expired user messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova import clock

if TYPE_CHECKING:
    from kilonova.services import Services

INTERVAL_SECONDS = 300.0


async def run(services: Services) -> None:
    async with services.db.transaction() as tx:
        await tx.execute("DELETE FROM volume_messages WHERE expires_at < $1", clock.now())
