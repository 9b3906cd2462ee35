"""Boots many servers concurrently and records the outcome of each. Also runs as a program in another process."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import msgspec
import orjson

from kilonova.placement import ClaimOutcome, Consumer, release
from kilonova.placement.candidates.model import RequestGroup
from kilonova.scheduler import Request, Scheduler, SchedulerConfig, candidates
from kilonova.store import Database, Transaction, Unavailable, open_database
from tests.scheduler.support import NoValidHost, place

try_claim = candidates.try_claim


class ServerRequest(msgspec.Struct):
    """A server to place, and the outcome."""

    consumer: str
    resources: dict[str, int]
    groups: dict[str, dict[str, int]] = {}
    isolate: bool = False
    release: bool = False
    """Whether its allocations are released immediately."""
    allocations: dict[str, dict[str, int]] | None = None
    sentence: str = ""

    @property
    def request(self) -> Request:
        groups = {suffix: RequestGroup(resources=resources) for suffix, resources in self.groups.items()}
        return Request(resources=self.resources, groups=groups, isolate=self.isolate)


class Record(msgspec.Struct):
    servers: list[ServerRequest]
    refused_claims: list[tuple[str, str, str]]
    """Consumer, allocations, and generations of the providers of each refused claim."""
    errors: list[str]


class ConcurrentBoots:
    def __init__(self, db: Database, at_once: int) -> None:
        self.db = db
        self.scheduler = Scheduler(db, SchedulerConfig(alternates=2))
        self.gate = asyncio.Semaphore(at_once)
        self.refused_claims: list[tuple[str, str, str]] = []
        self.errors: list[str] = []

    async def run(self, servers: list[ServerRequest]) -> Record:
        candidates.try_claim = self.try_claim
        try:
            await asyncio.gather(*map(self.boot, servers))
        finally:
            candidates.try_claim = try_claim
            await self.scheduler.close()
        return Record(servers, self.refused_claims, self.errors)

    async def boot(self, server: ServerRequest) -> None:
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
                except Unavailable as error:  # as the operations engine does
                    self.errors.append(str(error))
                    await asyncio.sleep(0.01)

    async def try_claim(
        self, tx: Transaction, consumer: Consumer, allocations: dict[str, dict[str, int]], **options: Any
    ) -> ClaimOutcome:
        outcome = await try_claim(tx, consumer, allocations, **options)
        if outcome is ClaimOutcome.REFUSED:
            sql = "SELECT uuid, generation FROM resource_providers WHERE uuid = ANY($1) ORDER BY uuid"
            rows = await tx.fetch(sql, list(allocations))
            generations = ",".join(str(row["generation"]) for row in rows)
            self.refused_claims.append((consumer.uuid, repr(sorted(allocations.items())), generations))
        return outcome


def repeated_claims(record: Record) -> list[tuple[str, str, str]]:
    """Claims that were tried again although the providers had not changed."""
    return [what for what, times in Counter(record.refused_claims).items() if times > 1]


async def main(job: dict[str, Any]) -> None:
    db = await open_database(job["url"])
    try:
        record = await ConcurrentBoots(db, job["at_once"]).run(msgspec.convert(job["servers"], list[ServerRequest]))
    finally:
        await db.close()
    sys.stdout.buffer.write(msgspec.json.encode(record))


if __name__ == "__main__":
    asyncio.run(main(orjson.loads(sys.stdin.buffer.read())))
