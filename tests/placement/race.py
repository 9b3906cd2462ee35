"""Many claims and releases at once, and the record of what was granted. Also a program: a second process."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import orjson

from kilonova.placement import Consumer, claim, release
from kilonova.store import Database, Unavailable, open_database

CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")


async def race(db: Database, providers: list[str], *, seed: int, number: int, releases: bool) -> list[dict[str, Any]]:
    """Every attempt with its outcome: granted, refused, or granted and then released."""
    dice = random.Random(seed)
    attempts = [
        {
            "consumer": f"{seed}-{n}",
            "provider": dice.choice(providers),
            "resources": {name: dice.randint(1, 4) for name in dice.sample(CLASSES, dice.randint(1, 3))},
            "release": releases and dice.random() < 0.3,
        }
        for n in range(number)
    ]
    gate = asyncio.Semaphore(16)

    async def one(attempt: dict[str, Any]) -> None:
        async with gate:
            attempt["granted"] = await persist(lambda: grant(db, attempt))
            if attempt["granted"] and attempt["release"]:
                await persist(lambda: give_back(db, attempt))

    await asyncio.gather(*(one(attempt) for attempt in attempts))
    return attempts


async def persist(act: Any) -> Any:
    """Passing trouble is to be tried again, as the operations engine does."""
    while True:
        try:
            return await act()
        except Unavailable:
            await asyncio.sleep(0.01)


async def grant(db: Database, attempt: dict[str, Any]) -> bool:
    async with db.transaction() as tx:
        who = Consumer(attempt["consumer"], "project", "user")
        return await claim(tx, who, {attempt["provider"]: attempt["resources"]})


async def give_back(db: Database, attempt: dict[str, Any]) -> None:
    async with db.transaction() as tx:
        await release(tx, attempt["consumer"])


async def main(job: dict[str, Any]) -> None:
    db = await open_database(job.pop("url"))
    try:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        attempts = await race(db, **job)
    finally:
        await db.close()
    print(orjson.dumps(attempts).decode())


if __name__ == "__main__":
    # A line says what to do, and another one when to begin.
    asyncio.run(main(orjson.loads(sys.stdin.readline())))
