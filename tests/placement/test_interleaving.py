"""Writers that meet in the middle of each other's transactions, on two connections each with a pool of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kilonova.hosts.messages import HostFacts, SharingProvider
from kilonova.hosts.registry import register
from kilonova.placement import Inventory, Raced, claim, mirror, release, replacing, sync
from kilonova.placement.facts import child_uuid, sharing_uuid
from kilonova.placement.replacing import Wanted
from kilonova.store import Database, Transaction
from tests.placement.race import persist
from tests.placement.rest.support import placement
from tests.placement.support import consumer, marks, provider, wait_for_waiting, write
from tests.placement.test_trees import AGGREGATE, amount, flat, numa
from tests.support import run
from tests.support.databases import opened

NOBODY = {"project_id": "p", "user_id": "u"}


@asynccontextmanager
async def two_pools(url: str) -> AsyncIterator[tuple[Database, Database]]:
    async with opened(url) as one, opened(url) as two:
        yield one, two


async def put(tx: Transaction, uuid: str, on: dict[str, dict[str, int]]) -> None:
    wanted = [Wanted(uuid=uuid, allocations=on)]
    await replacing.replace(tx, wanted, await replacing.lock(tx, wanted), NOBODY)


def test_a_release_follows_a_consumer_that_moves_meanwhile(postgresql_url):
    async def scenario():
        async with two_pools(postgresql_url) as (db, other):
            one, two, three = (provider(f"h{n}", VCPU=Inventory(8)) for n in range(3))
            await write(db, one, two, three)
            who = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, who, {one.uuid: {"VCPU": 1}})
            before = [await marks(db, facts.uuid) for facts in (one, two, three)]
            async with other.transaction() as tx:
                await put(tx, who.uuid, {two.uuid: {"VCPU": 1}, three.uuid: {"VCPU": 2}})
                moved = [await marks(tx, facts.uuid) for facts in (two, three)]
                releasing = asyncio.create_task(persist(lambda: give_back(db, who.uuid)))
                await wait_for_waiting(other)
            await releasing
            assert not await db.fetch("SELECT * FROM allocations")
            assert not await db.fetch("SELECT * FROM consumers")
            after = [await marks(db, facts.uuid) for facts in (two, three)]
            assert all(now > then for now, then in zip(after, moved, strict=True)), "schedulers are not told"
            assert (await marks(db, one.uuid))[1] > before[0][1]

    run(scenario())


async def give_back(db: Database, uuid: str) -> None:
    async with db.transaction() as tx:
        await release(tx, uuid)


def test_a_release_finds_nothing_where_another_came_first(postgresql_url):
    async def scenario():
        async with two_pools(postgresql_url) as (db, other):
            facts, who = provider(VCPU=Inventory(8)), consumer()
            await write(db, facts)
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 1}})
            async with other.transaction() as tx:
                await release(tx, who.uuid)
                settled = await marks(tx, facts.uuid)
                second = asyncio.create_task(give_back(db, who.uuid))
                await wait_for_waiting(other)
            await second
            assert await marks(db, facts.uuid) == settled

    run(scenario())


def test_a_host_gets_cells_while_an_operator_puts_it_below_something(postgresql_url):
    """Every provider of a tree names the same root, whoever comes first."""

    async def scenario():
        async with placement(postgresql_url) as place, opened(postgresql_url) as other:
            rack, host = await place.provider("rack"), flat()
            await write(place.db, host)
            async with other.transaction() as tx:
                await sync(tx, [numa()])
                body = {"name": host.name, "parent_provider_uuid": rack}
                moving = asyncio.create_task(place.put(f"/resource_providers/{host.uuid}", body))
                await wait_for_waiting(other)
            assert (await moving).status == 200
            tree = (await place.told(f"/resource_providers?in_tree={rack}"))["resource_providers"]
            assert {one["uuid"] for one in tree} == {
                rack,
                host.uuid,
                *(child_uuid(host.uuid, name) for name in ("NUMA0", "NUMA1")),
            }

    run(scenario())


def pooled(number: int) -> HostFacts:
    pool = SharingProvider(name="san", aggregate=AGGREGATE, inventory={"DISK_GB": amount(1000)}, traits=[])
    return HostFacts(
        host=f"h{number}",
        hypervisor_hostname=f"h{number}",
        hypervisor_type="sim",
        hypervisor_version=1,
        host_ip="10.0.0.1",
        inventory={"VCPU": amount(100)},
        sharing=[pool],
    )


def test_a_host_goes_while_somebody_claims_from_it_and_its_pool(postgresql_url):
    """A pool is older than most of its hosts, so claims lock it first. So does who takes it along."""

    async def scenario():
        async with two_pools(postgresql_url) as (db, other):
            for number in (1, 2):
                await register(db, [pooled(number)])
            async with db.transaction() as tx:
                await mirror.host_deleted(tx, "h1")
            pool = sharing_uuid("san")
            host = await db.fetch_value("SELECT uuid FROM hypervisors WHERE host = 'h2'")
            async with other.transaction() as tx:
                await tx.fetch("SELECT id FROM resource_providers WHERE uuid = $1 FOR UPDATE", pool)
                leaving = asyncio.create_task(leave(db, "h2"))
                await wait_for_waiting(other)
                assert await claim(tx, consumer(), {host: {"VCPU": 1}, pool: {"DISK_GB": 1}})
            with pytest.raises(mirror.InUse):
                await leaving

    run(scenario())


async def leave(db: Database, host: str) -> None:
    async with db.transaction() as tx:
        await mirror.host_deleted(tx, host)


def test_puts_and_releases_of_the_same_consumers(postgresql_url):
    """A release may have to start again, but never because two waited for each other."""

    async def scenario():
        async with two_pools(postgresql_url) as (db, other):
            facts = [provider(f"h{n}", VCPU=Inventory(1000)) for n in range(6)]
            await write(db, *facts)
            consumers = [consumer() for _ in range(4)]
            dice = random.Random(2)

            async def busy(db: Database) -> None:
                for _ in range(60):
                    who, on = dice.choice(consumers), dice.sample(facts, dice.randint(1, 4))
                    wanted = {one.uuid: {"VCPU": 1} for one in on}
                    if dice.random() < 0.5:
                        await released(db, who.uuid)
                    else:
                        await replacing.settled(db, lambda tx, who=who, wanted=wanted: put(tx, who.uuid, wanted))

            await asyncio.gather(*(busy(pool) for pool in (db, other) for _ in range(4)))
            for who in consumers:
                await give_back(db, who.uuid)
            assert not await db.fetch("SELECT * FROM allocations")
            assert not await db.fetch("SELECT * FROM consumers")

    run(scenario())


async def released(db: Database, uuid: str) -> None:
    while True:
        try:
            return await give_back(db, uuid)
        except Raced:
            continue
