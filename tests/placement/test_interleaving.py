"""Concurrent transactions that interleave, on two connection pools."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kilonova.hosts.messages import HostFacts, SharingProvider
from kilonova.hosts.registry import register
from kilonova.placement import ConcurrentUpdate, Inventory, allocation_update, claim, mirror, release, sync_providers
from kilonova.placement.allocation_update import ConsumerAllocations, Owner
from kilonova.placement.host_providers import child_uuid, sharing_uuid
from kilonova.store import Database, Transaction
from tests.placement.concurrent_claims import retry
from tests.placement.rest.support import placement
from tests.placement.support import consumer, counters, provider, wait_for_lock_waiters, write
from tests.placement.test_host_providers import AGGREGATE, amount, flat, numa
from tests.support import run
from tests.support.databases import opened

NOBODY = Owner("p", "u")


@asynccontextmanager
async def two_pools(url: str) -> AsyncIterator[tuple[Database, Database]]:
    async with opened(url) as one, opened(url) as two:
        yield one, two


async def put(tx: Transaction, uuid: str, on: dict[str, dict[str, int]]) -> None:
    wanted = [ConsumerAllocations(uuid=uuid, allocations=on)]
    await allocation_update.replace(tx, wanted, await allocation_update.lock(tx, wanted), NOBODY)


def test_release_after_concurrent_move_of_consumer(postgresql_url):
    async def scenario():
        async with two_pools(postgresql_url) as (db, other):
            one, two, three = (provider(f"h{n}", VCPU=Inventory(8)) for n in range(3))
            await write(db, one, two, three)
            who = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, who, {one.uuid: {"VCPU": 1}})
            before = [await counters(db, facts.uuid) for facts in (one, two, three)]
            async with other.transaction() as tx:
                await put(tx, who.uuid, {two.uuid: {"VCPU": 1}, three.uuid: {"VCPU": 2}})
                moved = [await counters(tx, facts.uuid) for facts in (two, three)]
                releasing = asyncio.create_task(retry(lambda: release_with_retry(db, who.uuid)))
                await wait_for_lock_waiters(other)
            await releasing
            assert not await db.fetch("SELECT * FROM allocations")
            assert not await db.fetch("SELECT * FROM consumers")
            after = [await counters(db, facts.uuid) for facts in (two, three)]
            assert all(now > then for now, then in zip(after, moved, strict=True)), "the change number did not grow"
            assert (await counters(db, one.uuid))[1] > before[0][1]

    run(scenario())


async def release_with_retry(db: Database, uuid: str) -> None:
    async with db.transaction() as tx:
        await release(tx, uuid)


def test_second_concurrent_release_does_nothing(postgresql_url):
    async def scenario():
        async with two_pools(postgresql_url) as (db, other):
            facts, who = provider(VCPU=Inventory(8)), consumer()
            await write(db, facts)
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 1}})
            async with other.transaction() as tx:
                await release(tx, who.uuid)
                settled = await counters(tx, facts.uuid)
                second = asyncio.create_task(release_with_retry(db, who.uuid))
                await wait_for_lock_waiters(other)
            await second
            assert await counters(db, facts.uuid) == settled

    run(scenario())


def test_sync_during_concurrent_reparenting_of_host(postgresql_url):
    """All providers of the tree get the same root, in either order."""

    async def scenario():
        async with placement(postgresql_url) as place, opened(postgresql_url) as other:
            rack, host = await place.provider("rack"), flat()
            await write(place.db, host)
            async with other.transaction() as tx:
                await sync_providers(tx, [numa()])
                body = {"name": host.name, "parent_provider_uuid": rack}
                moving = asyncio.create_task(place.put(f"/resource_providers/{host.uuid}", body))
                await wait_for_lock_waiters(other)
            assert (await moving).status == 200
            tree = (await place.get_json(f"/resource_providers?in_tree={rack}"))["resource_providers"]
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


def test_delete_host_during_concurrent_claims(postgresql_url):
    """A pool is older than most of its hosts, so claims lock it first. Deleting a host must do the same."""

    async def scenario():
        async with two_pools(postgresql_url) as (db, other):
            for number in (1, 2):
                await register(db, [pooled(number)])
            async with db.transaction() as tx:
                await mirror.delete_host(tx, "h1")
            pool = sharing_uuid("san")
            host = await db.fetch_value("SELECT uuid FROM hypervisors WHERE host = 'h2'")
            async with other.transaction() as tx:
                await tx.fetch("SELECT id FROM resource_providers WHERE uuid = $1 FOR UPDATE", pool)
                leaving = asyncio.create_task(delete_host(db, "h2"))
                await wait_for_lock_waiters(other)
                assert await claim(tx, consumer(), {host: {"VCPU": 1}, pool: {"DISK_GB": 1}})
            with pytest.raises(mirror.HostInUse):
                await leaving

    run(scenario())


async def delete_host(db: Database, host: str) -> None:
    async with db.transaction() as tx:
        await mirror.delete_host(tx, host)


def test_concurrent_updates_and_releases_of_same_consumers(postgresql_url):
    """A release may be retried, but never deadlocks."""

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
                        await allocation_update.run_with_retries(
                            db, lambda tx, who=who, wanted=wanted: put(tx, who.uuid, wanted)
                        )

            await asyncio.gather(*(busy(pool) for pool in (db, other) for _ in range(4)))
            for who in consumers:
                await release_with_retry(db, who.uuid)
            assert not await db.fetch("SELECT * FROM allocations")
            assert not await db.fetch("SELECT * FROM consumers")

    run(scenario())


async def released(db: Database, uuid: str) -> None:
    while True:
        try:
            return await release_with_retry(db, uuid)
        except ConcurrentUpdate:
            continue
