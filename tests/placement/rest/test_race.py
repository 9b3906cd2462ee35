"""However many write at once: what was confirmed is what is held, it never exceeds what there is, and nobody waits
for each other in a circle."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from kilonova.ids import new_id
from kilonova.placement import Consumer, HoldsOther, Raced, release
from kilonova.placement import claim as take
from kilonova.store import Unavailable
from tests.placement.rest.support import Place, claim, on_both, placement
from tests.support import run


async def at_once(*requests: Any) -> list[int]:
    return [answer.status for answer in await asyncio.gather(*requests)]


@on_both
async def test_parallel_puts_do_not_oversell(place: Place) -> None:
    uuid = await place.provider(VCPU=10)
    statuses = await at_once(*(place.allocate(new_id(), on={uuid: {"VCPU": 1}}) for _ in range(40)))
    assert Counter(statuses) == {204: 10, 409: 30}
    assert await place.used(uuid) == {"VCPU": 10}
    assert await place.generation(uuid) == 11


@on_both
async def test_a_consumer_is_made_once(place: Place) -> None:
    uuids = [await place.provider(VCPU=10) for _ in range(8)]
    consumer = new_id()
    statuses = await at_once(*(place.allocate(consumer, on={uuid: {"VCPU": 1}}) for uuid in uuids))
    assert Counter(statuses) == {204: 1, 409: 7}
    assert sum([(await place.used(uuid))["VCPU"] for uuid in uuids]) == 1


@on_both
async def test_a_consumers_generation_guards_it(place: Place) -> None:
    uuids = [await place.provider(VCPU=10) for _ in range(8)]
    consumer = new_id()
    await place.allocate(consumer, on={uuids[0]: {"VCPU": 1}})
    statuses = await at_once(*(place.allocate(consumer, 1, on={uuid: {"VCPU": 2}}) for uuid in uuids))
    assert Counter(statuses) == {204: 1, 409: 7}
    (held,) = (await place.held(consumer)).items()
    assert [uuid for uuid in uuids if await place.used(uuid) == {"VCPU": 2}] == [held[0]]


@on_both
async def test_without_generations_the_last_one_counts(place: Place) -> None:
    """Old versions give none: every one of them is written, whole, one after the other."""
    uuids = [await place.provider(VCPU=10) for _ in range(6)]
    consumer = new_id()
    bodies = [
        {"allocations": [{"resource_provider": {"uuid": uuid}, "resources": {"VCPU": 1}} for uuid in pair]}
        for first in uuids
        for pair in [random.Random(first).sample(uuids, 2)]
    ]
    statuses = await at_once(*(place.put(f"/allocations/{consumer}", body, version="1.0") for body in bodies))
    assert Counter(statuses) == {204: 6}
    held = await place.held(consumer)
    assert set(held) in [{entry["resource_provider"]["uuid"] for entry in body["allocations"]} for body in bodies]
    assert sum([(await place.used(uuid))["VCPU"] for uuid in uuids]) == 2
    assert (await place.told(f"/allocations/{consumer}"))["consumer_generation"] == 6


@on_both
async def test_deleting_and_putting_at_once(place: Place) -> None:
    one, two, consumer = await place.provider(VCPU=10), await place.provider(VCPU=10), new_id()
    for _ in range(10):
        await place.allocate(consumer, on={one: {"VCPU": 1}})
        put = claim({two: {"VCPU": 1}}, 1)
        statuses = await at_once(place.put(f"/allocations/{consumer}", put), place.delete(f"/allocations/{consumer}"))
        assert statuses in ([204, 204], [409, 204])
        assert await place.held(consumer) == {}
        assert (await place.used(one), await place.used(two)) == ({"VCPU": 0}, {"VCPU": 0})


class Storm:
    """Random writes of all kinds at the same providers, by API and by claims, and what must hold afterwards."""

    AMOUNT = 12

    def __init__(self, places: list[Place], seed: int) -> None:
        self.places = places
        self.random = random.Random(seed)
        self.consumers = [new_id() for _ in range(12)]
        self.uuids: list[str] = []

    async def prepare(self) -> None:
        self.uuids = [await self.places[0].provider(VCPU=self.AMOUNT, DISK_GB=self.AMOUNT) for _ in range(5)]

    def some(self) -> dict[str, dict[str, int]]:
        return {
            uuid: {name: self.random.randint(1, 4) for name in self.random.sample(["VCPU", "DISK_GB"], 2)}
            for uuid in self.random.sample(self.uuids, self.random.randint(1, 3))
        }

    async def one(self) -> int:
        place = self.random.choice(self.places)
        consumer = self.random.choice(self.consumers)
        kind = self.random.choice(["put", "put", "post", "delete", "claim", "release", "reshape", "inventory"])
        on, generation = self.some(), self.random.choice([None, None, 1, 2])
        if kind == "put":
            return (await place.allocate(consumer, generation, on=on)).status
        if kind == "post":
            others = self.random.sample(self.consumers, 3)
            body = {other: claim(self.some(), self.random.choice([None, 1])) for other in others}
            return int((await place.post("/allocations", body)).status)
        if kind == "delete":
            return int((await place.delete(f"/allocations/{consumer}")).status)
        if kind in ("claim", "release"):
            return await self.inside(place, consumer, on, kind)
        uuid = self.random.choice(self.uuids)
        seen = await place.told(f"/resource_providers/{uuid}/inventories")
        if kind == "inventory":
            return int((await place.put(f"/resource_providers/{uuid}/inventories", seen)).status)
        body = {"inventories": {uuid: seen}, "allocations": {consumer: claim({uuid: {"VCPU": 1}}, generation)}}
        return int((await place.post("/reshaper", body, as_="service")).status)

    async def inside(self, place: Place, consumer: str, on: dict[str, dict[str, int]], kind: str) -> int:
        try:
            async with place.db.transaction() as tx:
                if kind == "release":
                    await release(tx, consumer)
                else:
                    await take(tx, Consumer(consumer, "p", "u"), on)
        except (HoldsOther, Raced):
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


async def _storm(places: list[Place], seed: int) -> None:
    storm = Storm(places, seed)
    await storm.prepare()
    statuses = await asyncio.gather(*(storm.one() for _ in range(150)))
    assert set(statuses) <= {200, 204, 404, 409}, Counter(statuses)
    assert statuses.count(204) > 20
    await storm.check()


@on_both
async def test_a_storm(place: Place) -> None:
    await _storm([place], seed=1)


def test_a_storm_through_two_pools(postgresql_url: str) -> None:
    async def scenario() -> None:
        async with placement(postgresql_url) as one, placement(postgresql_url) as two:
            await _storm([one, two], seed=2)

    run(scenario())
