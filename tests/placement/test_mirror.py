"""Compute's aggregates, ratios and service states are mirrored into placement in the same transaction."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import clock
from kilonova.placement import HostProviders, Inventory, claim, mirror, release
from kilonova.store import Database, Transaction
from tests.placement.support import all_rows, consumer, counters, provider, write
from tests.support import run

AGGREGATE = "a0000000-0000-4000-8000-000000000001"


async def put_host(db: Database, host: str = "cn", **more: Any) -> HostProviders:
    """A host with a service, a hypervisor and a provider."""
    facts = provider(f"{host}.example", VCPU=Inventory(8, allocation_ratio=4.0), MEMORY_MB=Inventory(1024), **more)
    await write(db, facts)
    async with db.transaction() as tx:
        service = await tx.fetch_value(
            "INSERT INTO services (uuid, host, program, disabled, forced_down, last_seen_at, report_count, version,"
            " created_at) VALUES ($1, $2, 'nova-compute', FALSE, FALSE, 0, 0, 1, 0) RETURNING id",
            f"service-{host}",
            host,
        )
        await tx.execute(
            "INSERT INTO hypervisors (uuid, service_id, host, hypervisor_hostname, hypervisor_type,"
            " hypervisor_version, host_ip, cpu_info, created_at) VALUES ($1, $2, $3, $4, 'sim', 1, '', '{}', 0)",
            facts.uuid,
            service,
            host,
            facts.name,
        )
    return facts


async def put_aggregate(tx: Transaction, name: str, hosts: list[str], uuid: str = "", **metadata: str) -> int:
    number: int = await tx.fetch_value(
        "INSERT INTO aggregates (uuid, name, created_at) VALUES ($1, $2, $3) RETURNING id",
        uuid or f"uuid-of-{name}",
        name,
        clock.now(),
    )
    for host in hosts:
        await tx.execute("INSERT INTO aggregate_hosts (aggregate_id, host) VALUES ($1, $2)", number, host)
    for key, value in metadata.items():
        await tx.execute(
            "INSERT INTO aggregate_metadata (aggregate_id, key, value) VALUES ($1, $2, $3)", number, key, value
        )
    return number


async def aggregates(db: Database) -> set[tuple[str, str]]:
    rows = await db.fetch(
        "SELECT p.name, a.aggregate_uuid FROM provider_aggregates a JOIN resource_providers p ON p.id = a.provider_id"
    )
    return {(row["name"], row["aggregate_uuid"]) for row in rows}


async def ratios(db: Database) -> dict[tuple[str, str], float]:
    rows = await db.fetch(
        "SELECT p.name, i.resource_class, i.allocation_ratio FROM inventories i"
        " JOIN resource_providers p ON p.id = i.provider_id"
    )
    return {(row["name"], row["resource_class"]): row["allocation_ratio"] for row in rows}


async def disabled(db: Database) -> set[str]:
    rows = await db.fetch(
        "SELECT p.name FROM provider_traits t JOIN resource_providers p ON p.id = t.provider_id"
        " WHERE t.trait = 'COMPUTE_STATUS_DISABLED'"
    )
    return {row["name"] for row in rows}


def test_aggregate_members_are_mirrored(database):
    async def scenario():
        async with database() as db:
            one, other = await put_host(db, "cn1"), await put_host(db, "cn2")
            generation, change, _ = await counters(db, one.uuid)
            for _ in range(2):
                async with db.transaction() as tx:
                    await mirror.add_to_aggregate(tx, AGGREGATE, ["cn1", "cn2", "unknown"])
            assert await aggregates(db) == {(one.name, AGGREGATE), (other.name, AGGREGATE)}
            after = await counters(db, one.uuid)
            assert after[0] == generation + 1, "a repeated call does not change the provider"
            assert after[1] == after[2] > change
            async with db.transaction() as tx:
                await mirror.remove_from_aggregate(tx, AGGREGATE, ["cn1"])
            assert await aggregates(db) == {(other.name, AGGREGATE)}
            assert (await counters(db, one.uuid))[0] == generation + 2

    run(scenario())


def test_hosts_are_marked_changed_even_if_providers_are_not(database):
    """Schedulers also read zones, which depend on aggregates."""

    async def scenario():
        async with database() as db:
            facts = await put_host(db)
            for change in (
                lambda tx: mirror.remove_from_aggregate(tx, AGGREGATE, ["cn"]),
                lambda tx: mirror.set_service_disabled(tx, "cn", False),
                lambda tx: mirror.update_allocation_ratios(tx, ["cn"]),
            ):
                before = await counters(db, facts.uuid)
                async with db.transaction() as tx:
                    await change(tx)
                after = await counters(db, facts.uuid)
                assert after[0] == before[0]
                assert after[2] > before[2]

    run(scenario())


def test_disabled_service_adds_trait(database):
    async def scenario():
        async with database() as db:
            facts, _ = await put_host(db, "cn1"), await put_host(db, "cn2")
            for _ in range(2):
                async with db.transaction() as tx:
                    await mirror.set_service_disabled(tx, "cn1", True)
                assert await disabled(db) == {facts.name}
            await write(db, facts)
            assert await disabled(db) == {facts.name}, "a host's report does not remove the trait"
            async with db.transaction() as tx:
                await mirror.set_service_disabled(tx, "cn1", False)
            assert await disabled(db) == set()

    run(scenario())


def test_smallest_aggregate_ratio_applies(database):
    async def scenario():
        async with database() as db:
            one, other = await put_host(db, "cn1"), await put_host(db, "cn2")
            async with db.transaction() as tx:
                await put_aggregate(tx, "loose", ["cn1", "cn2"], cpu_allocation_ratio="16.0", ram_allocation_ratio="x")
                await put_aggregate(tx, "tight", ["cn1"], cpu_allocation_ratio="2", disk_allocation_ratio="3")
                await mirror.update_allocation_ratios(tx, ["cn1", "cn2"])
            expected = {(one.name, "VCPU"): 2.0, (other.name, "VCPU"): 16.0}
            memory = {(one.name, "MEMORY_MB"): 1.0, (other.name, "MEMORY_MB"): 1.0}
            assert await ratios(db) == expected | memory
            await write(db, one, other)
            assert await ratios(db) == expected | memory
            before = await all_rows(db)
            async with db.transaction() as tx:
                await mirror.update_allocation_ratios(tx, ["unknown"])
            assert await all_rows(db) == before
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM aggregates")
                await mirror.update_allocation_ratios(tx, ["cn1", "cn2"])
            assert await ratios(db) == {(one.name, "VCPU"): 4.0, (other.name, "VCPU"): 4.0} | memory

    run(scenario())


def test_operators_ratio_stays_without_aggregate_ratio(database):
    async def scenario():
        async with database() as db:
            facts = await put_host(db)
            async with db.transaction() as tx:
                await tx.execute("UPDATE inventories SET allocation_ratio = 9 WHERE resource_class = 'VCPU'")
                await put_aggregate(tx, "plain", ["cn"])
                await mirror.update_allocation_ratios(tx, ["cn"])
            assert (await ratios(db))[facts.name, "VCPU"] == 9.0

    run(scenario())


def test_delete_host_deletes_unused_providers(database):
    async def scenario():
        async with database() as db:
            facts, other = await put_host(db, "cn1"), await put_host(db, "cn2")
            async with db.transaction() as tx:
                await tx.execute(
                    "INSERT INTO resource_providers (uuid, name, generation, parent_id, root_id, change, facts,"
                    " created_at, updated_at) SELECT 'child', 'child', 0, id, id, 0, 0, 0, 0"
                    " FROM resource_providers WHERE uuid = $1",
                    facts.uuid,
                )
            user = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, user, {facts.uuid: {"VCPU": 1}})
            before = await all_rows(db)
            with pytest.raises(mirror.HostInUse, match="cn1 still holds allocations of 1 consumers"):
                async with db.transaction() as tx:
                    await mirror.delete_host(tx, "cn1")
            assert await all_rows(db) == before
            async with db.transaction() as tx:
                await release(tx, user.uuid)
                await mirror.delete_host(tx, "cn1")
            assert await db.fetch("SELECT name FROM resource_providers") == [{"name": other.name}]

    run(scenario())


def test_registered_hosts_get_earlier_aggregates_ratios_and_trait(database):
    async def scenario():
        async with database() as db:
            facts = await put_host(db)
            async with db.transaction() as tx:
                await put_aggregate(tx, "zone", ["cn"], AGGREGATE, cpu_allocation_ratio="2")
                await tx.execute("UPDATE services SET disabled = TRUE")
                await mirror.mirror_registered_hosts(tx, ["cn"])
            assert await aggregates(db) == {(facts.name, AGGREGATE)}
            assert await disabled(db) == {facts.name}
            assert (await ratios(db))[facts.name, "VCPU"] == 2.0
            before = await all_rows(db)
            async with db.transaction() as tx:
                await mirror.mirror_registered_hosts(tx, ["cn"])
            assert await all_rows(db) == before

    run(scenario())
