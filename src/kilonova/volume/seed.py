"""Creates the default volume type of a new cloud."""

from __future__ import annotations

from kilonova import clock
from kilonova.store import Transaction
from kilonova.volume.types import model


async def seed(tx: Transaction) -> None:
    await tx.lock("volume seed")
    if await tx.fetch_value("SELECT 1 FROM volume_types WHERE name = $1", model.DEFAULT) is None:
        await model.create(tx, model.DEFAULT, clock.now(), description="Default Volume Type")
