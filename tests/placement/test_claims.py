"""A claim takes all or nothing, once, and never more than there is."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kilonova.placement import (
    Consumer,
    HoldsOther,
    Inventory,
    Outcome,
    allocations_of,
    claim,
    release,
    try_claim,
    usages,
)
from kilonova.store import Database
from tests.placement.support import consumer, everything, marks, provider, wait_for_waiting, write
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
        (Inventory(8, allocation_ratio=2.0), 0, 9, False),  # max_unit is the total: one server never gets more
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
def test_what_fits(sqlite_url, inventory, used, amount, fits):
    async def scenario():
        async with opened(sqlite_url) as db:
            # What is already used was claimed while other units held.
            facts = provider(DISK_GB=Inventory(1000))
            await write(db, facts)
            async with db.transaction() as tx:
                if used:
                    assert await claim(tx, consumer(), {facts.uuid: {"DISK_GB": used}})
            await write(db, provider_like(facts, inventory))
            async with db.transaction() as tx:
                assert await claim(tx, consumer(), {facts.uuid: {"DISK_GB": amount}}) is fits
            total = used + amount if fits else used
            assert await usages(db, [facts.uuid]) == {facts.uuid: {"DISK_GB": total}}

    run(scenario())


def provider_like(facts, inventory):
    return type(facts)(facts.uuid, facts.name, {"DISK_GB": inventory}, facts.traits)


def test_a_claim_takes_every_class_and_moves_the_provider(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(8), MEMORY_MB=Inventory(1024), DISK_GB=Inventory(10))
            await write(db, facts)
            generation, change, seen = await marks(db, facts.uuid)
            who = consumer("p1", "u1")
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 0}})
            assert await allocations_of(db, [who.uuid, "nobody"]) == {
                who.uuid: {facts.uuid: {"VCPU": 2, "MEMORY_MB": 512}}
            }
            assert await usages(db, [facts.uuid]) == {facts.uuid: {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 0}}
            assert await marks(db, facts.uuid) == (generation + 1, change + 1, seen)
            row = await db.fetch_one("SELECT uuid, project_id, user_id, type, generation FROM consumers")
            assert tuple(row.values()) == (who.uuid, "p1", "u1", "INSTANCE", 1)

    run(scenario())


REFUSED = (
    {"VCPU": 9, "MEMORY_MB": 512},
    {"VCPU": 2, "MEMORY_MB": 2048},
    {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 1},
    {"CUSTOM_UNKNOWN": 1},
)


def test_a_refused_claim_writes_nothing(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(8), MEMORY_MB=Inventory(1024))
            await write(db, facts)
            before = await everything(db)
            async with db.transaction() as tx:
                for resources in REFUSED:
                    assert not await claim(tx, consumer(), {facts.uuid: resources}), resources
                assert not await claim(tx, consumer(), {"no such provider": {"VCPU": 1}})
            assert await everything(db) == before

    run(scenario())


def test_a_repeated_claim_is_held_and_not_doubled(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(3))  # no room for a second one
            await write(db, facts)
            who = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 2}})
            before = await everything(db)
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 2, "DISK_GB": 0}})
            assert await everything(db) == before

    run(scenario())


def test_a_consumer_that_holds_something_else_is_told(database):
    async def scenario():
        async with database() as db:
            one = provider("one", VCPU=Inventory(8), DISK_GB=Inventory(8))
            other = provider("other", VCPU=Inventory(8), DISK_GB=Inventory(8))
            await write(db, one, other)
            who = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, who, {one.uuid: {"VCPU": 2}})
            before = await everything(db)
            for asked, resources in ((one, {"VCPU": 1}), (one, {"VCPU": 2, "DISK_GB": 1}), (other, {"VCPU": 2})):
                with pytest.raises(HoldsOther, match=f"already holds 2 VCPU on {one.uuid}"):
                    async with db.transaction() as tx:
                        await claim(tx, who, {asked.uuid: resources})
            assert await everything(db) == before

    run(scenario())


@pytest.mark.parametrize("resources", [{}, {"VCPU": 0}, {"VCPU": 1, "DISK_GB": -1}])
def test_amounts_must_be_positive(sqlite_url, resources):
    async def scenario():
        async with opened(sqlite_url) as db, db.transaction() as tx:
            with pytest.raises(ValueError, match="positive"):
                await claim(tx, consumer(), {"any": resources})

    run(scenario())


# Several providers at once


async def tree(db: Database, **vcpus: int) -> dict[str, str]:
    """Providers with so many VCPU and as many DISK_GB each; their uuids by name."""
    facts = [provider(name, VCPU=Inventory(number), DISK_GB=Inventory(number)) for name, number in vcpus.items()]
    await write(db, *facts)
    return {one.name: one.uuid for one in facts}


def test_several_providers_give_all_or_nothing(database):
    async def scenario():
        async with database() as db:
            ids = await tree(db, root=8, cell=2, pool=1)
            before = await everything(db)
            refused = (
                {ids["root"]: {"VCPU": 1}, ids["cell"]: {"VCPU": 3}},
                {ids["pool"]: {"DISK_GB": 2}, ids["root"]: {"VCPU": 1}},
                {ids["root"]: {"VCPU": 1}, ids["pool"]: {"CUSTOM_UNKNOWN": 1}},
                {ids["root"]: {"VCPU": 1}, "no such provider": {"VCPU": 1}},
            )
            async with db.transaction() as tx:
                for asked in refused:
                    assert not await claim(tx, consumer(), asked), asked
                    assert await try_claim(tx, consumer(), asked, wait=False) is Outcome.REFUSED
            assert await everything(db) == before
            who = consumer()
            asked = {ids["pool"]: {"DISK_GB": 1}, ids["root"]: {"VCPU": 1, "DISK_GB": 2}, ids["cell"]: {"VCPU": 2}}
            generations = [(await marks(db, ids[name]))[0] for name in ids]
            async with db.transaction() as tx:
                assert await claim(tx, who, asked)
            assert await allocations_of(db, [who.uuid]) == {who.uuid: asked}
            assert [(await marks(db, ids[name]))[0] for name in ids] == [number + 1 for number in generations]
            before = await everything(db)
            async with db.transaction() as tx:
                assert await claim(tx, who, {**asked, ids["cell"]: {"VCPU": 2, "DISK_GB": 0}})  # the same again
            for other in ({ids["root"]: {"VCPU": 1}}, {**asked, ids["cell"]: {"VCPU": 1}}):
                with pytest.raises(HoldsOther):
                    async with db.transaction() as tx:
                        await claim(tx, who, other)
            assert await everything(db) == before
            async with db.transaction() as tx:
                await release(tx, who.uuid)
            assert all(not any(used.values()) for used in (await usages(db, list(ids.values()))).values())

    run(scenario())


def test_one_busy_provider_of_several_is_enough_to_be_busy(postgresql_url):
    async def scenario():
        async with opened(postgresql_url) as db:
            ids = await tree(db, root=8, pool=8)
            both = {ids["root"]: {"VCPU": 1}, ids["pool"]: {"DISK_GB": 1}}

            async def attempt(wait: bool) -> Outcome:
                async with db.transaction() as tx:
                    return await try_claim(tx, consumer(), both, wait=wait)

            async with db.transaction() as tx:
                assert await claim(tx, consumer(), {ids["pool"]: {"DISK_GB": 1}})
                assert await asyncio.create_task(attempt(wait=False)) is Outcome.BUSY
                waiting = asyncio.create_task(attempt(wait=True))
                await wait_for_waiting(db)
            assert await waiting is Outcome.CLAIMED

    run(scenario())


def test_claims_on_the_same_providers_in_any_order_do_not_deadlock(postgresql_url):
    async def scenario():
        async with opened(postgresql_url) as db:
            ids = list((await tree(db, **{f"p{n}": 100 for n in range(4)})).values())
            orders = list(itertools.permutations(ids))

            async def one(number: int) -> None:
                async with db.transaction() as tx:
                    order = orders[number % len(orders)]
                    assert await claim(tx, consumer(), {uuid: {"VCPU": 1} for uuid in order[: 2 + number % 3]})

            await asyncio.gather(*(one(number) for number in range(72)))
            assert sum(used["VCPU"] for used in (await usages(db, ids)).values()) == 24 * (2 + 3 + 4)

    run(scenario())


def test_release_gives_everything_back_once(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(2), DISK_GB=Inventory(2))
            await write(db, facts)
            who = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, who, {facts.uuid: {"VCPU": 2, "DISK_GB": 1}})
            generation, change, seen = await marks(db, facts.uuid)
            async with db.transaction() as tx:
                await release(tx, who.uuid)
            assert await usages(db, [facts.uuid]) == {facts.uuid: {"VCPU": 0, "DISK_GB": 0}}
            assert await db.fetch("SELECT * FROM consumers") == []
            assert await marks(db, facts.uuid) == (generation + 1, change + 1, seen)
            before = await everything(db)
            async with db.transaction() as tx:
                await release(tx, who.uuid)
            assert await everything(db) == before

    run(scenario())


def test_a_rolled_back_transaction_leaves_no_claim(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(2))
            await write(db, facts)
            before = await everything(db)
            with pytest.raises(RuntimeError):
                async with db.transaction() as tx:
                    assert await claim(tx, consumer(), {facts.uuid: {"VCPU": 1}})
                    raise RuntimeError
            assert await everything(db) == before

    run(scenario())


def test_a_provider_being_claimed_from_is_busy_for_those_who_do_not_wait(postgresql_url):
    async def scenario():
        async with opened(postgresql_url) as db:
            facts = provider(VCPU=Inventory(2))
            await write(db, facts)

            async def attempt(uuid: str) -> Outcome:
                async with db.transaction() as tx:
                    return await try_claim(tx, consumer(), {uuid: {"VCPU": 1}}, wait=False)

            async with db.transaction() as tx:
                assert await claim(tx, consumer(), {facts.uuid: {"VCPU": 1}})
                assert await asyncio.create_task(attempt(facts.uuid)) is Outcome.BUSY
                assert await asyncio.create_task(attempt("unknown")) is Outcome.REFUSED
            assert await attempt(facts.uuid) is Outcome.CLAIMED

    run(scenario())


def test_a_consumer_without_a_type_is_allowed(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(2))
            await write(db, facts)
            async with db.transaction() as tx:
                assert await claim(tx, Consumer("c", "p", "u", None), {facts.uuid: {"VCPU": 1}})
            assert await db.fetch_value("SELECT type FROM consumers") is None

    run(scenario())
