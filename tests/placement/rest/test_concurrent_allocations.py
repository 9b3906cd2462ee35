"""Concurrent writes: stored allocations match the confirmed ones, never exceed the capacity, and do not deadlock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from kilonova.ids import new_id
from kilonova.placement import ConcurrentUpdate, Consumer, ConsumerHasAllocations, claim, release
from kilonova.store import Unavailable
from tests.placement.rest.support import Place, allocations_body, on_both, placement
from tests.support import run


async def at_once(*requests: Any) -> list[int]:
    return [response.status for response in await asyncio.gather(*requests)]


@on_both
async def test_concurrent_puts_respect_capacity(place: Place) -> None:
    uuid = await place.provider(VCPU=10)
    statuses = await at_once(*(place.allocate(new_id(), on={uuid: {"VCPU": 1}}) for _ in range(40)))
    assert Counter(statuses) == {204: 10, 409: 30}
    assert await place.usages(uuid) == {"VCPU": 10}
    assert await place.generation(uuid) == 11


@on_both
async def test_concurrent_puts_create_consumer_once(place: Place) -> None:
    uuids = [await place.provider(VCPU=10) for _ in range(8)]
    consumer = new_id()
    statuses = await at_once(*(place.allocate(consumer, on={uuid: {"VCPU": 1}}) for uuid in uuids))
    assert Counter(statuses) == {204: 1, 409: 7}
    assert sum([(await place.usages(uuid))["VCPU"] for uuid in uuids]) == 1


@on_both
async def test_consumer_generation_prevents_lost_updates(place: Place) -> None:
    uuids = [await place.provider(VCPU=10) for _ in range(8)]
    consumer = new_id()
    await place.allocate(consumer, on={uuids[0]: {"VCPU": 1}})
    statuses = await at_once(*(place.allocate(consumer, 1, on={uuid: {"VCPU": 2}}) for uuid in uuids))
    assert Counter(statuses) == {204: 1, 409: 7}
    (held,) = (await place.allocations(consumer)).items()
    assert [uuid for uuid in uuids if await place.usages(uuid) == {"VCPU": 2}] == [held[0]]


@on_both
async def test_without_generation_last_write_wins(place: Place) -> None:
    """Requests of old versions have no generation: all are written, one after the other."""
    uuids = [await place.provider(VCPU=10) for _ in range(6)]
    consumer = new_id()
    bodies = [
        {"allocations": [{"resource_provider": {"uuid": uuid}, "resources": {"VCPU": 1}} for uuid in pair]}
        for first in uuids
        for pair in [random.Random(first).sample(uuids, 2)]
    ]
    statuses = await at_once(*(place.put(f"/allocations/{consumer}", body, version="1.0") for body in bodies))
    assert Counter(statuses) == {204: 6}
    held = await place.allocations(consumer)
    assert set(held) in [{entry["resource_provider"]["uuid"] for entry in body["allocations"]} for body in bodies]
    assert sum([(await place.usages(uuid))["VCPU"] for uuid in uuids]) == 2
    assert (await place.get_json(f"/allocations/{consumer}"))["consumer_generation"] == 6


@on_both
async def test_concurrent_delete_and_put(place: Place) -> None:
    one, two, consumer = await place.provider(VCPU=10), await place.provider(VCPU=10), new_id()
    for _ in range(10):
        await place.allocate(consumer, on={one: {"VCPU": 1}})
        put = allocations_body({two: {"VCPU": 1}}, 1)
        statuses = await at_once(place.put(f"/allocations/{consumer}", put), place.delete(f"/allocations/{consumer}"))
        assert statuses in ([204, 204], [409, 204])
        assert await place.allocations(consumer) == {}
        assert (await place.usages(one), await place.usages(two)) == ({"VCPU": 0}, {"VCPU": 0})


class RandomWrites:
    """Random writes to the same providers, by API and by claims, with invariants to check afterwards."""

    AMOUNT = 12

    def __init__(self, places: list[Place], seed: int) -> None:
        self.places = places
        self.random = random.Random(seed)
        self.consumers = [new_id() for _ in range(12)]
        self.uuids: list[str] = []

    async def prepare(self) -> None:
        self.uuids = [await self.places[0].provider(VCPU=self.AMOUNT, DISK_GB=self.AMOUNT) for _ in range(5)]

    def random_allocations(self) -> dict[str, dict[str, int]]:
        return {
            uuid: {name: self.random.randint(1, 4) for name in self.random.sample(["VCPU", "DISK_GB"], 2)}
            for uuid in self.random.sample(self.uuids, self.random.randint(1, 3))
        }

    async def random_write(self) -> int:
        place = self.random.choice(self.places)
        consumer = self.random.choice(self.consumers)
        kind = self.random.choice(["put", "put", "post", "delete", "claim", "release", "reshape", "inventory"])
        on, generation = self.random_allocations(), self.random.choice([None, None, 1, 2])
        if kind == "put":
            return (await place.allocate(consumer, generation, on=on)).status
        if kind == "post":
            others = self.random.sample(self.consumers, 3)
            body = {
                other: allocations_body(self.random_allocations(), self.random.choice([None, 1])) for other in others
            }
            return int((await place.post("/allocations", body)).status)
        if kind == "delete":
            return int((await place.delete(f"/allocations/{consumer}")).status)
        if kind in ("claim", "release"):
            return await self.write_in_process(place, consumer, on, kind)
        uuid = self.random.choice(self.uuids)
        seen = await place.get_json(f"/resource_providers/{uuid}/inventories")
        if kind == "inventory":
            return int((await place.put(f"/resource_providers/{uuid}/inventories", seen)).status)
        body = {
            "inventories": {uuid: seen},
            "allocations": {consumer: allocations_body({uuid: {"VCPU": 1}}, generation)},
        }
        return int((await place.post("/reshaper", body, as_="service")).status)

    async def write_in_process(self, place: Place, consumer: str, on: dict[str, dict[str, int]], kind: str) -> int:
        try:
            async with place.db.transaction() as tx:
                if kind == "release":
                    await release(tx, consumer)
                else:
                    await claim(tx, Consumer(consumer, "p", "u"), on)
        except (ConsumerHasAllocations, ConcurrentUpdate):
            return 409
        except Unavailable:  # a deadlock
            return 503
        return 204

    async def check(self) -> None:
        db = self.places[0].db
        rows = await db.fetch("SELECT resource_class, provider_id, SUM(used) AS used FROM allocations GROUP BY 1, 2")
        assert all(row["used"] <= self.AMOUNT for row in rows)
        assert (
            await db.fetch("SELECT uuid FROM consumers WHERE uuid NOT IN (SELECT consumer_uuid FROM allocations)") == []
        )


async def _run_random_writes(places: list[Place], seed: int) -> None:
    writes = RandomWrites(places, seed)
    await writes.prepare()
    statuses = await asyncio.gather(*(writes.random_write() for _ in range(150)))
    assert set(statuses) <= {200, 204, 404, 409}, Counter(statuses)
    assert statuses.count(204) > 20
    await writes.check()


@on_both
async def test_random_concurrent_writes(place: Place) -> None:
    await _run_random_writes([place], seed=1)


def test_random_concurrent_writes_through_two_pools(postgresql_url: str) -> None:
    async def scenario() -> None:
        async with placement(postgresql_url) as one, placement(postgresql_url) as two:
            await _run_random_writes([one, two], seed=2)

    run(scenario())
