"""Many servers placed at once, and the record of what became of each. Also a program: another process."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import msgspec
import orjson

from kilonova.placement import Consumer, Outcome, release
from kilonova.placement.candidates.model import Group
from kilonova.scheduler import Request, Scheduler, SchedulerConfig, candidates
from kilonova.store import Database, Transaction, Unavailable, open_database
from tests.scheduler.support import NoValidHost, place

try_claim = candidates.try_claim


class Asked(msgspec.Struct):
    """A server to place, and what became of it."""

    consumer: str
    resources: dict[str, int]
    groups: dict[str, dict[str, int]] = {}
    isolate: bool = False
    release: bool = False
    """Whether it goes again at once."""
    allocations: dict[str, dict[str, int]] | None = None
    sentence: str = ""

    @property
    def request(self) -> Request:
        groups = {suffix: Group(resources=resources) for suffix, resources in self.groups.items()}
        return Request(resources=self.resources, groups=groups, isolate=self.isolate)


class Record(msgspec.Struct):
    servers: list[Asked]
    entered: list[tuple[str, str, str]]
    """Refused claims: for whom, what from whom, and the generations of those providers."""
    troubles: list[str]


class Crowd:
    def __init__(self, db: Database, at_once: int) -> None:
        self.db = db
        self.scheduler = Scheduler(db, SchedulerConfig(alternates=2))
        self.gate = asyncio.Semaphore(at_once)
        self.entered: list[tuple[str, str, str]] = []
        self.troubles: list[str] = []

    async def run(self, servers: list[Asked]) -> Record:
        candidates.try_claim = self.watched
        try:
            await asyncio.gather(*map(self.one, servers))
        finally:
            candidates.try_claim = try_claim
            await self.scheduler.close()
        return Record(servers, self.entered, self.troubles)

    async def one(self, server: Asked) -> None:
        async with self.gate:
            while True:
                try:
                    consumer = Consumer(server.consumer, "project", "user")
                    taken = await place(self.scheduler, self.db, server.request, consumer)
                    server.allocations = taken.allocations
                    if server.release:
                        async with self.db.transaction() as tx:
                            await release(tx, server.consumer)
                    return
                except NoValidHost as refusal:
                    server.sentence = str(refusal)
                    return
                except Unavailable as trouble:  # as the operations engine does
                    self.troubles.append(str(trouble))
                    await asyncio.sleep(0.01)

    async def watched(
        self, tx: Transaction, consumer: Consumer, allocations: dict[str, dict[str, int]], **options: Any
    ) -> Outcome:
        outcome = await try_claim(tx, consumer, allocations, **options)
        if outcome is Outcome.REFUSED:
            sql = "SELECT uuid, generation FROM resource_providers WHERE uuid = ANY($1) ORDER BY uuid"
            rows = await tx.fetch(sql, list(allocations))
            generations = ",".join(str(row["generation"]) for row in rows)
            self.entered.append((consumer.uuid, repr(sorted(allocations.items())), generations))
        return outcome


def twice(record: Record) -> list[tuple[str, str, str]]:
    """Claims that were tried again although nothing had changed."""
    return [what for what, times in Counter(record.entered).items() if times > 1]


async def main(job: dict[str, Any]) -> None:
    db = await open_database(job["url"])
    try:
        record = await Crowd(db, job["at_once"]).run(msgspec.convert(job["servers"], list[Asked]))
    finally:
        await db.close()
    sys.stdout.buffer.write(msgspec.json.encode(record))


if __name__ == "__main__":
    asyncio.run(main(orjson.loads(sys.stdin.buffer.read())))
