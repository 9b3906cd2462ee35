"""Two consumers change places, and nothing is freed or taken on the way."""

from __future__ import annotations

import asyncio

from kilonova.placement import Consumer, Inventory, Raced, allocations_of, claim, exchange, release, usages
from tests.placement.support import consumer, everything, provider, write
from tests.support import run
from tests.support.databases import opened


async def _two_full_hosts(db):
    """Each holds exactly one of the two."""
    first, second = provider("one", VCPU=Inventory(4)), provider("two", VCPU=Inventory(2))
    await write(db, first, second)
    server, move = consumer(), Consumer(consumer().uuid, "p", "u", "MIGRATION")
    async with db.transaction() as tx:
        assert await claim(tx, server, {first.uuid: {"VCPU": 4}})
        assert await claim(tx, move, {second.uuid: {"VCPU": 2}})
    return first.uuid, second.uuid, server, move


def test_each_holds_what_the_other_held(database_url):
    async def scenario():
        async with opened(database_url) as db:
            first, second, server, move = await _two_full_hosts(db)
            async with db.transaction() as tx:
                await exchange(tx, server, move)
            held = await allocations_of(db, [server.uuid, move.uuid])
            assert held == {server.uuid: {second: {"VCPU": 2}}, move.uuid: {first: {"VCPU": 4}}}
            assert await usages(db, [first, second]) == {first: {"VCPU": 4}, second: {"VCPU": 2}}

    run(scenario())


def test_one_that_holds_nothing_gives_nothing(database_url):
    async def scenario():
        async with opened(database_url) as db:
            _, second, server, move = await _two_full_hosts(db)
            async with db.transaction() as tx:
                await release(tx, server.uuid)
            async with db.transaction() as tx:
                await exchange(tx, server, move)
            assert await allocations_of(db, [server.uuid, move.uuid]) == {server.uuid: {second: {"VCPU": 2}}}
            kinds = await db.fetch("SELECT uuid, type FROM consumers")
            assert kinds == [{"uuid": server.uuid, "type": "INSTANCE"}]

    run(scenario())


def test_nothing_for_nobody(database_url):
    async def scenario():
        async with opened(database_url) as db:
            before = await everything(db)
            async with db.transaction() as tx:
                await exchange(tx, consumer(), consumer())
            assert await everything(db) == before

    run(scenario())


def test_generations_move_as_with_any_change(database_url):
    async def scenario():
        async with opened(database_url) as db:
            first, second, server, move = await _two_full_hosts(db)
            sql = "SELECT uuid, generation FROM resource_providers UNION ALL SELECT uuid, generation FROM consumers"
            before = {row["uuid"]: row["generation"] for row in await db.fetch(sql)}
            async with db.transaction() as tx:
                await exchange(tx, server, move)
            after = {row["uuid"]: row["generation"] for row in await db.fetch(sql)}
            assert all(after[uuid] > before[uuid] for uuid in (first, second, server.uuid, move.uuid))

    run(scenario())


def test_beside_claims_and_releases(database_url):
    """Whoever comes between starts again; at no moment is more in use than there is."""

    async def scenario():
        async with opened(database_url) as db:
            first, second, server, move = await _two_full_hosts(db)

            async def turn():
                for _ in range(10):
                    try:
                        async with db.transaction() as tx:
                            await exchange(tx, server, move)
                    except Raced:
                        continue

            async def intrude():
                for _ in range(10):
                    other = consumer()
                    async with db.transaction() as tx:
                        assert not await claim(tx, other, {first: {"VCPU": 1}, second: {"VCPU": 1}})

            await asyncio.gather(turn(), turn(), intrude())
            assert await usages(db, [first, second]) == {first: {"VCPU": 4}, second: {"VCPU": 2}}

    run(scenario())
