"""Claims are all or nothing, idempotent, and never exceed the capacity."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kilonova.placement import (
    ClaimOutcome,
    Consumer,
    ConsumerHasAllocations,
    Inventory,
    claim,
    get_allocations,
    get_usages,
    release,
    try_claim,
)
from kilonova.store import Database
from tests.placement.support import all_rows, consumer, counters, provider, wait_for_lock_waiters, write
from tests.support import run
from tests.support.databases import opened


@pytest.mark.parametrize(
    "inventory, used, amount, fits",
    [
        (Inventory(8), 0, 8, True),
        (Inventory(8), 0, 9, False),
        (Inventory(8), 5, 3, True),
        (Inventory(8), 5, 4, False),
        (Inventory(8, reserved=2), 0, 7, False),
        (Inventory(8, reserved=2), 0, 6, True),
        (Inventory(8, reserved=8), 0, 1, False),
        (Inventory(8, allocation_ratio=2.0), 8, 8, True),
        (
            Inventory(8, allocation_ratio=2.0),
            0,
            9,
            False,
        ),  # max_unit is the total: a single allocation cannot be larger
        (Inventory(8, allocation_ratio=2.0, max_unit=16), 0, 16, True),
        (Inventory(8, allocation_ratio=2.0, max_unit=16), 1, 16, False),
        (Inventory(10, allocation_ratio=0.55, max_unit=10), 0, 5, True),
        (Inventory(10, allocation_ratio=0.55, max_unit=10), 0, 6, False),
        (Inventory(8, max_unit=4), 0, 5, False),
        (Inventory(8, max_unit=4), 4, 4, True),
        (Inventory(8, min_unit=2), 0, 1, False),
        (Inventory(8, min_unit=2), 0, 2, True),
        (Inventory(100, step_size=10), 0, 25, False),
        (Inventory(100, step_size=10), 0, 30, True),
    ],
)
def test_claim_respects_inventory(sqlite_url, inventory, used, amount, fits):
    async def scenario():
        async with opened(sqlite_url) as db:
            # The used amount was claimed before the units changed.
            facts = provider(DISK_GB=Inventory(1000))
            await write(db, facts)
            async with db.transaction() as tx:
                if used:
                    assert await claim(tx, consumer(), {facts.uuid: {"DISK_GB": used}})
            await write(db, provider_with_inventory(facts, inventory))
            async with db.transaction() as tx:
                assert await claim(tx, consumer(), {facts.uuid: {"DISK_GB": amount}}) is fits
            total = used + amount if fits else used
            assert await get_usages(db, [facts.uuid]) == {facts.uuid: {"DISK_GB": total}}

    run(scenario())


def provider_with_inventory(facts, inventory):
    return type(facts)(facts.uuid, facts.name, {"DISK_GB": inventory}, facts.traits)


def test_claim_allocates_every_class_and_changes_provider(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(8), MEMORY_MB=Inventory(1024), DISK_GB=Inventory(10))
            await write(db, facts)
            generation, change, seen = await counters(db, facts.uuid)
            who = consumer("p1", "u1")
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 0}})
            assert await get_allocations(db, [who.uuid, "nobody"]) == {
                who.uuid: {facts.uuid: {"VCPU": 2, "MEMORY_MB": 512}}
            }
            assert await get_usages(db, [facts.uuid]) == {facts.uuid: {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 0}}
            assert await counters(db, facts.uuid) == (generation + 1, change + 1, seen)
            row = await db.fetch_one("SELECT uuid, project_id, user_id, type, generation FROM consumers")
            assert tuple(row.values()) == (who.uuid, "p1", "u1", "INSTANCE", 1)

    run(scenario())


REFUSED = (
    {"VCPU": 9, "MEMORY_MB": 512},
    {"VCPU": 2, "MEMORY_MB": 2048},
    {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 1},
    {"CUSTOM_UNKNOWN": 1},
)


def test_refused_claim_writes_nothing(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(8), MEMORY_MB=Inventory(1024))
            await write(db, facts)
            before = await all_rows(db)
            async with db.transaction() as tx:
                for resources in REFUSED:
                    assert not await claim(tx, consumer(), {facts.uuid: resources}), resources
                assert not await claim(tx, consumer(), {"no such provider": {"VCPU": 1}})
            assert await all_rows(db) == before

    run(scenario())


def test_repeated_claim_allocates_once(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(3))  # no room for a second claim
            await write(db, facts)
            who = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 2}})
            before = await all_rows(db)
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 2, "DISK_GB": 0}})
            assert await all_rows(db) == before

    run(scenario())


def test_claim_with_other_allocations_raises(database):
    async def scenario():
        async with database() as db:
            one = provider("one", VCPU=Inventory(8), DISK_GB=Inventory(8))
            other = provider("other", VCPU=Inventory(8), DISK_GB=Inventory(8))
            await write(db, one, other)
            who = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, who, {one.uuid: {"VCPU": 2}})
            before = await all_rows(db)
            for requested, resources in ((one, {"VCPU": 1}), (one, {"VCPU": 2, "DISK_GB": 1}), (other, {"VCPU": 2})):
                with pytest.raises(ConsumerHasAllocations, match=f"already holds 2 VCPU on {one.uuid}"):
                    async with db.transaction() as tx:
                        await claim(tx, who, {requested.uuid: resources})
            assert await all_rows(db) == before

    run(scenario())


@pytest.mark.parametrize("resources", [{}, {"VCPU": 0}, {"VCPU": 1, "DISK_GB": -1}])
def test_claim_refuses_amounts_that_are_not_positive(sqlite_url, resources):
    async def scenario():
        async with opened(sqlite_url) as db, db.transaction() as tx:
            with pytest.raises(ValueError, match="positive"):
                await claim(tx, consumer(), {"any": resources})

    run(scenario())


# Several providers


async def tree(db: Database, **vcpus: int) -> dict[str, str]:
    """Create providers with these amounts of VCPU and of DISK_GB; their uuids by name."""
    facts = [provider(name, VCPU=Inventory(number), DISK_GB=Inventory(number)) for name, number in vcpus.items()]
    await write(db, *facts)
    return {one.name: one.uuid for one in facts}


def test_claim_on_several_providers_is_all_or_nothing(database):
    async def scenario():
        async with database() as db:
            ids = await tree(db, root=8, cell=2, pool=1)
            before = await all_rows(db)
            refused = (
                {ids["root"]: {"VCPU": 1}, ids["cell"]: {"VCPU": 3}},
                {ids["pool"]: {"DISK_GB": 2}, ids["root"]: {"VCPU": 1}},
                {ids["root"]: {"VCPU": 1}, ids["pool"]: {"CUSTOM_UNKNOWN": 1}},
                {ids["root"]: {"VCPU": 1}, "no such provider": {"VCPU": 1}},
            )
            async with db.transaction() as tx:
                for requested in refused:
                    assert not await claim(tx, consumer(), requested), requested
                    assert await try_claim(tx, consumer(), requested, wait=False) is ClaimOutcome.REFUSED
            assert await all_rows(db) == before
            who = consumer()
            requested = {ids["pool"]: {"DISK_GB": 1}, ids["root"]: {"VCPU": 1, "DISK_GB": 2}, ids["cell"]: {"VCPU": 2}}
            generations = [(await counters(db, ids[name]))[0] for name in ids]
            async with db.transaction() as tx:
                assert await claim(tx, who, requested)
            assert await get_allocations(db, [who.uuid]) == {who.uuid: requested}
            assert [(await counters(db, ids[name]))[0] for name in ids] == [number + 1 for number in generations]
            before = await all_rows(db)
            async with db.transaction() as tx:
                assert await claim(tx, who, {**requested, ids["cell"]: {"VCPU": 2, "DISK_GB": 0}})  # repeated
            for other in ({ids["root"]: {"VCPU": 1}}, {**requested, ids["cell"]: {"VCPU": 1}}):
                with pytest.raises(ConsumerHasAllocations):
                    async with db.transaction() as tx:
                        await claim(tx, who, other)
            assert await all_rows(db) == before
            async with db.transaction() as tx:
                await release(tx, who.uuid)
            assert all(not any(used.values()) for used in (await get_usages(db, list(ids.values()))).values())

    run(scenario())


def test_claim_is_busy_if_one_of_several_providers_is_locked(postgresql_url):
    async def scenario():
        async with opened(postgresql_url) as db:
            ids = await tree(db, root=8, pool=8)
            both = {ids["root"]: {"VCPU": 1}, ids["pool"]: {"DISK_GB": 1}}

            async def attempt(wait: bool) -> ClaimOutcome:
                async with db.transaction() as tx:
                    return await try_claim(tx, consumer(), both, wait=wait)

            async with db.transaction() as tx:
                assert await claim(tx, consumer(), {ids["pool"]: {"DISK_GB": 1}})
                assert await asyncio.create_task(attempt(wait=False)) is ClaimOutcome.BUSY
                waiting = asyncio.create_task(attempt(wait=True))
                await wait_for_lock_waiters(db)
            assert await waiting is ClaimOutcome.CLAIMED

    run(scenario())


def test_claims_in_any_provider_order_do_not_deadlock(postgresql_url):
    async def scenario():
        async with opened(postgresql_url) as db:
            ids = list((await tree(db, **{f"p{n}": 100 for n in range(4)})).values())
            orders = list(itertools.permutations(ids))

            async def one(number: int) -> None:
                async with db.transaction() as tx:
                    order = orders[number % len(orders)]
                    assert await claim(tx, consumer(), {uuid: {"VCPU": 1} for uuid in order[: 2 + number % 3]})

            await asyncio.gather(*(one(number) for number in range(72)))
            assert sum(used["VCPU"] for used in (await get_usages(db, ids)).values()) == 24 * (2 + 3 + 4)

    run(scenario())


def test_release_frees_all_allocations_once(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(2), DISK_GB=Inventory(2))
            await write(db, facts)
            who = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 2, "DISK_GB": 1}})
            generation, change, seen = await counters(db, facts.uuid)
            async with db.transaction() as tx:
                await release(tx, who.uuid)
            assert await get_usages(db, [facts.uuid]) == {facts.uuid: {"VCPU": 0, "DISK_GB": 0}}
            assert await db.fetch("SELECT * FROM consumers") == []
            assert await counters(db, facts.uuid) == (generation + 1, change + 1, seen)
            before = await all_rows(db)
            async with db.transaction() as tx:
                await release(tx, who.uuid)
            assert await all_rows(db) == before

    run(scenario())


def test_rollback_undoes_claim(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(2))
            await write(db, facts)
            before = await all_rows(db)
            with pytest.raises(RuntimeError):
                async with db.transaction() as tx:
                    assert await claim(tx, consumer(), {facts.uuid: {"VCPU": 1}})
                    raise RuntimeError
            assert await all_rows(db) == before

    run(scenario())


def test_claim_without_wait_is_busy_on_locked_provider(postgresql_url):
    async def scenario():
        async with opened(postgresql_url) as db:
            facts = provider(VCPU=Inventory(2))
            await write(db, facts)

            async def attempt(uuid: str) -> ClaimOutcome:
                async with db.transaction() as tx:
                    return await try_claim(tx, consumer(), {uuid: {"VCPU": 1}}, wait=False)

            async with db.transaction() as tx:
                assert await claim(tx, consumer(), {facts.uuid: {"VCPU": 1}})
                assert await asyncio.create_task(attempt(facts.uuid)) is ClaimOutcome.BUSY
                assert await asyncio.create_task(attempt("unknown")) is ClaimOutcome.REFUSED
            assert await attempt(facts.uuid) is ClaimOutcome.CLAIMED

    run(scenario())


def test_claim_for_consumer_without_type(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(2))
            await write(db, facts)
            async with db.transaction() as tx:
                assert await claim(tx, Consumer("c", "p", "u", None), {facts.uuid: {"VCPU": 1}})
            assert await db.fetch_value("SELECT type FROM consumers") is None

    run(scenario())
