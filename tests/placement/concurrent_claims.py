"""Many concurrent claims and releases, with a record of the outcomes. Also a program: the second process."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import orjson

from kilonova.placement import Consumer, claim, release
from kilonova.store import Database, Unavailable, open_database

CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")


async def run_attempts(
    db: Database, providers: list[str], *, seed: int, number: int, releases: bool
) -> list[dict[str, Any]]:
    """All attempts with their outcomes: granted, refused, or granted and then released."""
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
            attempt["granted"] = await retry(lambda: claim_attempt(db, attempt))
            if attempt["granted"] and attempt["release"]:
                await retry(lambda: release_attempt(db, attempt))

    await asyncio.gather(*(one(attempt) for attempt in attempts))
    return attempts


async def retry(act: Any) -> Any:
    """Retry after Unavailable, as the operations engine does."""
    while True:
        try:
            return await act()
        except Unavailable:
            await asyncio.sleep(0.01)


async def claim_attempt(db: Database, attempt: dict[str, Any]) -> bool:
    async with db.transaction() as tx:
        who = Consumer(attempt["consumer"], "project", "user")
        return await claim(tx, who, {attempt["provider"]: attempt["resources"]})


async def release_attempt(db: Database, attempt: dict[str, Any]) -> None:
    async with db.transaction() as tx:
        await release(tx, attempt["consumer"])


async def main(job: dict[str, Any]) -> None:
    db = await open_database(job.pop("url"))
    try:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        attempts = await run_attempts(db, **job)
    finally:
        await db.close()
    print(orjson.dumps(attempts).decode())


if __name__ == "__main__":
    # The first line of input is the job, the second the start signal.
    asyncio.run(main(orjson.loads(sys.stdin.readline())))
