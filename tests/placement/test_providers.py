"""Providers are synchronized with the reports of hosts, and written only if they differ."""

from __future__ import annotations

import pytest

from kilonova.hosts.messages import Inventory as HostInventory
from kilonova.placement import HostProviders, Inventory, claim, get_usages, mark_hosts_changed, release, sync_providers
from kilonova.store import Conflict
from tests.placement.support import all_rows, consumer, counters, provider, write
from tests.support import run


def test_sync_creates_root_providers_with_inventory_and_traits(database):
    async def scenario():
        async with database() as db:
            facts = provider(traits=("HW_CPU_X86_AVX2",), VCPU=Inventory(8, reserved=1, allocation_ratio=4.0))
            await write(db, facts)
            row = await db.fetch_one("SELECT * FROM resource_providers WHERE uuid = $1", facts.uuid)
            assert (row["name"], row["root_id"], row["parent_id"]) == ("host-1", row["id"], None)
            inventory = await db.fetch_one("SELECT * FROM inventories")
            assert inventory == {
                "provider_id": row["id"],
                "resource_class": "VCPU",
                "total": 8,
                "reserved": 1,
                "min_unit": 1,
                "max_unit": 8,
                "step_size": 1,
                "allocation_ratio": 4.0,
                "own_ratio": 4.0,
                "aggregate_ratio": None,
            }
            assert await db.fetch_value("SELECT trait FROM provider_traits") == "HW_CPU_X86_AVX2"

    run(scenario())


def test_repeated_sync_writes_nothing(database):
    async def scenario():
        async with database() as db:
            facts = [provider(f"host-{n}", traits=("CUSTOM_A",), VCPU=Inventory(8)) for n in range(3)]
            await write(db, *facts)
            before = await all_rows(db)
            await write(db, *facts)
            assert await all_rows(db) == before

    run(scenario())


def test_sync_changes_only_differing_provider(database):
    async def scenario():
        async with database() as db:
            one, other = provider("one", VCPU=Inventory(8)), provider("other", VCPU=Inventory(8))
            await write(db, one, other)
            before = await counters(db, one.uuid), await counters(db, other.uuid)
            larger = HostProviders(
                one.uuid, "renamed", {"VCPU": Inventory(16), "CUSTOM_FPGA": Inventory(2)}, ["CUSTOM_A"]
            )
            await write(db, larger, other)
            generation, change, facts = await counters(db, one.uuid)
            assert generation == before[0][0] + 1
            assert change == facts > max(before[0][1], before[1][1])
            assert await counters(db, other.uuid) == before[1]
            assert await db.fetch_value("SELECT name FROM resource_providers WHERE uuid = $1", one.uuid) == "renamed"
            rows = await db.fetch("SELECT resource_class, total FROM inventories WHERE total <> 8")
            assert {row["resource_class"]: row["total"] for row in rows} == {"VCPU": 16, "CUSTOM_FPGA": 2}

    run(scenario())


def test_sync_removes_lost_traits_and_unused_classes(database):
    async def scenario():
        async with database() as db:
            facts = provider(traits=("CUSTOM_A", "CUSTOM_B"), VCPU=Inventory(8), DISK_GB=Inventory(10))
            await write(db, facts)
            await write(db, HostProviders(facts.uuid, facts.name, {"VCPU": Inventory(8)}, ["CUSTOM_B"]))
            assert await db.fetch("SELECT trait FROM provider_traits") == [{"trait": "CUSTOM_B"}]
            assert await db.fetch("SELECT resource_class FROM inventories") == [{"resource_class": "VCPU"}]

    run(scenario())


def test_lost_class_in_use_is_closed_until_free(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(8), DISK_GB=Inventory(10))
            without_disk = HostProviders(facts.uuid, facts.name, {"VCPU": Inventory(8)})
            await write(db, facts)
            holder = consumer()
            async with db.transaction() as tx:
                assert await claim(tx, holder, {facts.uuid: {"DISK_GB": 4}})
            await write(db, without_disk)
            assert await get_usages(db, [facts.uuid]) == {facts.uuid: {"VCPU": 0, "DISK_GB": 4}}
            before = await all_rows(db)
            await write(db, without_disk)
            assert await all_rows(db) == before
            async with db.transaction() as tx:
                assert not await claim(tx, consumer(), {facts.uuid: {"DISK_GB": 1}})
                await release(tx, holder.uuid)
            await write(db, without_disk)
            assert await get_usages(db, [facts.uuid]) == {facts.uuid: {"VCPU": 0}}

    run(scenario())


def test_sync_accepts_inventory_message_of_agents(database):
    async def scenario():
        async with database() as db:
            body = HostProviders("0" * 8, "host-1", {"VCPU": HostInventory(total=4, max_unit=2)})
            await write(db, body)
            row = await db.fetch_one("SELECT total, max_unit, allocation_ratio FROM inventories")
            assert row == {"total": 4, "max_unit": 2, "allocation_ratio": 1.0}

    run(scenario())


def test_sync_refuses_invalid_names_and_writes_nothing(database):
    async def scenario():
        async with database() as db:
            with pytest.raises(ValueError, match="'vcpu' is not a valid name of a class"):
                await write(db, HostProviders("uuid", "host-1", {"vcpu": Inventory(1)}))
            assert await db.fetch("SELECT * FROM resource_providers") == []

    run(scenario())


def test_provider_names_are_unique(database):
    async def scenario():
        async with database() as db:
            await write(db, provider("host-1", VCPU=Inventory(1)))
            with pytest.raises(Conflict):
                await write(db, provider("host-1", VCPU=Inventory(1)))

    run(scenario())


def test_sync_of_thousand_hosts_is_fast(database):
    """It takes 0.2 s on an idle machine; the limit allows for a busy one."""

    async def scenario():
        async with database() as db:
            inventory = {"VCPU": Inventory(64), "MEMORY_MB": Inventory(262144), "DISK_GB": Inventory(2000)}
            hosts = [HostProviders(f"uuid-{n}", f"host-{n}", inventory, ["CUSTOM_A", "CUSTOM_B"]) for n in range(1000)]
            await write(db, *hosts)
            assert await db.fetch_value("SELECT COUNT(*) FROM inventories") == 3000

    run(scenario())


def test_mark_hosts_changed_keeps_generation(database):
    async def scenario():
        async with database() as db:
            facts = provider(VCPU=Inventory(8))
            await write(db, facts)
            async with db.transaction() as tx:
                await tx.execute(
                    "INSERT INTO services (id, uuid, host, program, disabled, forced_down, last_seen_at,"
                    " report_count, version, created_at)"
                    " VALUES (1, 's', 'cn', 'nova-compute', FALSE, FALSE, 0, 0, 1, 0)"
                )
                await tx.execute(
                    "INSERT INTO hypervisors (uuid, service_id, host, hypervisor_hostname, hypervisor_type,"
                    " hypervisor_version, host_ip, cpu_info, created_at)"
                    " VALUES ($1, 1, 'cn', 'cn', 'sim', 1, '', '{}', 0)",
                    facts.uuid,
                )
            generation, change, seen = await counters(db, facts.uuid)
            async with db.transaction() as tx:
                await mark_hosts_changed(tx, ["cn", "unknown"])
            assert await counters(db, facts.uuid) == (generation, change + 1, change + 1) != (generation, change, seen)

    run(scenario())


def test_empty_sync_writes_nothing(database):
    async def scenario():
        async with database() as db:
            async with db.transaction() as tx:
                await sync_providers(tx, [])
            assert await db.fetch("SELECT * FROM resource_providers") == []

    run(scenario())


def test_sync_restores_renamed_host_unless_name_is_taken(database):
    async def scenario():
        async with database() as db:
            host, other = provider("host-1", VCPU=Inventory(8)), provider("other", VCPU=Inventory(8))
            await write(db, host, other)

            async def rename(uuid: str, name: str) -> None:
                async with db.transaction() as tx:
                    await tx.execute("UPDATE resource_providers SET name = $2 WHERE uuid = $1", uuid, name)

            async def names() -> list[str]:
                return [row["name"] for row in await db.fetch("SELECT name FROM resource_providers ORDER BY id")]

            await rename(host.uuid, "renamed")
            await write(db, host, other)
            assert await names() == ["host-1", "other"]
            await rename(host.uuid, "renamed")
            stranger = provider("host-1", VCPU=Inventory(8))
            await write(db, stranger)
            await write(db, host, other)  # other providers of the report are still written
            assert await names() == ["renamed", "other", "host-1"]

    run(scenario())
