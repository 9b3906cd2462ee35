"""Hosts with nested and sharing providers: synchronization, operators' changes, moves of allocations."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import msgspec
import pytest

from kilonova.hosts.messages import Inventory as ReportedInventory
from kilonova.hosts.messages import NestedProvider, SharingProvider
from kilonova.placement import HostProviders, Inventory, claim, host_providers, release
from kilonova.placement.host_providers import SHARING_TRAIT, child_uuid, sharing_uuid
from kilonova.store import Database
from tests.placement.concurrent_claims import release_attempt, retry
from tests.placement.support import all_rows, consumer, counters, write
from tests.support import run
from tests.support.databases import opened

HOST = "11111111-2222-4333-8444-555555555555"
AGGREGATE = "a0000000-0000-4000-8000-000000000001"


def amount(total: int, **more: Any) -> ReportedInventory:
    return ReportedInventory(**{"total": total, "max_unit": total} | more)


def cells(number: int, vcpus: int = 8, memory: int = 1024) -> list[NestedProvider]:
    inventory = {"VCPU": amount(vcpus), "MEMORY_MB": amount(memory)}
    return [NestedProvider(name=f"NUMA{n}", inventory=inventory, traits=["HW_NUMA_ROOT"]) for n in range(number)]


def flat(uuid: str = HOST, name: str = "cn", vcpus: int = 16, memory: int = 2048, **more: Any) -> HostProviders:
    inventory = {"VCPU": Inventory(vcpus), "MEMORY_MB": Inventory(memory), "DISK_GB": Inventory(100)}
    return HostProviders(uuid, name, inventory, ["COMPUTE_NODE"], **more)


def numa(number: int = 2, uuid: str = HOST, name: str = "cn", vcpus: int = 8) -> HostProviders:
    return HostProviders(uuid, name, {"DISK_GB": Inventory(100)}, ["COMPUTE_NODE"], cells(number, vcpus))


def san(total: int = 1000, aggregate: str = AGGREGATE) -> SharingProvider:
    return SharingProvider(
        name="san", aggregate=aggregate, inventory={"DISK_GB": amount(total)}, traits=["STORAGE_DISK_SSD"]
    )


def diskless(number: int = 1, **more: Any) -> HostProviders:
    inventory = {"VCPU": Inventory(16), "MEMORY_MB": Inventory(2048)}
    return HostProviders(f"host-uuid-{number}", f"cn{number}", inventory, ["COMPUTE_NODE"], sharing=[san(**more)])


async def tree(db: Database) -> dict[str, str | None]:
    """The parent's name of every provider."""
    rows = await db.fetch(
        "SELECT p.name, q.name AS parent FROM resource_providers p LEFT JOIN resource_providers q ON q.id = p.parent_id"
    )
    return {row["name"]: row["parent"] for row in rows}


async def inventory(db: Database) -> dict[str, dict[str, tuple[int, int]]]:
    """Total and reserved, by provider and class."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for row in await db.fetch(
        "SELECT p.name, i.* FROM inventories i JOIN resource_providers p ON p.id = i.provider_id"
    ):
        found.setdefault(row["name"], {})[row["resource_class"]] = row["total"], row["reserved"]
    return found


async def allocations(db: Database) -> dict[tuple[str, str], dict[str, int]]:
    """Allocations by consumer and provider."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in await db.fetch(
        "SELECT a.*, p.name FROM allocations a JOIN resource_providers p ON p.id = a.provider_id"
    ):
        found.setdefault((row["consumer_uuid"], row["name"]), {})[row["resource_class"]] = row["used"]
    return found


async def traits(db: Database, name: str) -> set[str]:
    rows = await db.fetch(
        "SELECT t.trait FROM provider_traits t JOIN resource_providers p ON p.id = t.provider_id WHERE p.name = $1",
        name,
    )
    return {row["trait"] for row in rows}


async def aggregates(db: Database) -> set[tuple[str, str]]:
    rows = await db.fetch(
        "SELECT p.name, a.aggregate_uuid FROM provider_aggregates a JOIN resource_providers p ON p.id = a.provider_id"
    )
    return {(row["name"], row["aggregate_uuid"]) for row in rows}


async def claim_new(db: Database, **providers: dict[str, int]) -> str:
    """Claim from the named providers for a new consumer; its uuid."""
    rows = await db.fetch("SELECT uuid, name FROM resource_providers")
    uuids = {row["name"]: row["uuid"] for row in rows}
    user = consumer()
    async with db.transaction() as tx:
        assert await claim(tx, user, {uuids[name]: amounts for name, amounts in providers.items()})
    return user.uuid


async def operators_child(db: Database, parent: str, name: str) -> None:
    """Create a child provider as the API does."""
    async with db.transaction() as tx:
        await tx.execute(
            "INSERT INTO resource_providers (uuid, name, generation, parent_id, root_id, change, facts, created_at,"
            " updated_at) SELECT $1, $1, 0, id, root_id, 0, 0, 0, 0 FROM resource_providers WHERE name = $2",
            name,
            parent,
        )


def test_sync_of_deep_tree_writes_once(database):
    async def scenario():
        async with database() as db:
            deep = NestedProvider(name="NUMA0_GPU", parent="NUMA0", inventory={"VGPU": amount(4)}, traits=["CUSTOM_T4"])
            facts = msgspec.structs.replace(numa(), nested=[*cells(2), deep])
            await write(db, facts)
            assert await tree(db) == {"cn": None, "cn_NUMA0": "cn", "cn_NUMA1": "cn", "cn_NUMA0_GPU": "cn_NUMA0"}
            roots = await db.fetch("SELECT DISTINCT root_id FROM resource_providers WHERE reported")
            assert len(roots) == 1
            assert await traits(db, "cn_NUMA0_GPU") == {"CUSTOM_T4"}
            assert (await inventory(db))["cn_NUMA1"] == {"VCPU": (8, 0), "MEMORY_MB": (1024, 0)}
            before = await all_rows(db)
            await write(db, facts)
            assert await all_rows(db) == before

    run(scenario())


def test_renamed_host_renames_nested_providers(database):
    async def scenario():
        async with database() as db:
            await write(db, numa())
            await claim_new(db, cn_NUMA0={"VCPU": 1})
            await write(db, numa(name="cn.example"))
            assert set(await tree(db)) == {"cn.example", "cn.example_NUMA0", "cn.example_NUMA1"}

    run(scenario())


def test_nested_provider_changes_parent(database):
    async def scenario():
        async with database() as db:
            gpu = NestedProvider(name="GPU", parent="NUMA0", inventory={"VGPU": amount(4)})
            await write(db, msgspec.structs.replace(numa(), nested=[*cells(2), gpu]))
            await operators_child(db, "cn_GPU", "mine")
            moved = NestedProvider(name="GPU", parent="NUMA1", inventory={"VGPU": amount(4)})
            await write(db, msgspec.structs.replace(numa(), nested=[*cells(2), moved]))
            assert (await tree(db))["cn_GPU"] == "cn_NUMA1"
            assert (await tree(db))["mine"] == "cn_GPU"

    run(scenario())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"nested": [NestedProvider(name="GPU", parent="NUMA7")]}, "the parent 'NUMA7' of nested provider 'GPU'"),
        ({"nested": [NestedProvider(name="GPU", parent="GPU")]}, "the parent 'GPU' of nested provider 'GPU'"),
        ({"nested": cells(1) * 2}, "must be unique and not empty: 'NUMA0'"),
        ({"traits": ["fast"]}, "'fast' is not a valid name of a class or trait"),
        ({"inventory": {"VCPU": Inventory(0)}}, "the inventory of VCPU is invalid"),
        ({"inventory": {"VCPU": Inventory(2**40)}}, "the inventory of VCPU is invalid"),
        ({"inventory": {"VCPU": Inventory(1, step_size=0)}}, "the inventory of VCPU is invalid"),
        ({"inventory": {"VCPU": Inventory(1, allocation_ratio=float("nan"))}}, "the inventory of VCPU is invalid"),
    ],
)
def test_invalid_report_is_refused(database, change, message):
    async def scenario():
        async with database() as db:
            with pytest.raises(ValueError, match=f"host cn: .*{message}"):
                await write(db, msgspec.structs.replace(flat(), **change))
            assert await tree(db) == {}

    run(scenario())


def test_unreported_nested_provider_is_deleted(database):
    async def scenario():
        async with database() as db:
            await write(db, numa(3))
            before = await counters(db, HOST)
            await write(db, numa(2))
            assert set(await tree(db)) == {"cn", "cn_NUMA0", "cn_NUMA1"}
            after = await counters(db, HOST)
            assert after[2] > before[2]

    run(scenario())


def test_unreported_provider_in_use_is_closed_until_free(database):
    async def scenario():
        async with database() as db:
            await write(db, numa(3))
            user = await claim_new(db, cn_NUMA2={"VCPU": 2})
            await write(db, numa(2))
            assert (await inventory(db))["cn_NUMA2"] == {"VCPU": (8, 8)}
            before = await all_rows(db)
            await write(db, numa(2))
            assert await all_rows(db) == before
            async with db.transaction() as tx:
                await release(tx, user)
            await write(db, numa(2))
            assert set(await tree(db)) == {"cn", "cn_NUMA0", "cn_NUMA1"}

    run(scenario())


def test_sync_keeps_operators_providers(database):
    async def scenario():
        async with database() as db:
            await write(db, numa(2))
            await operators_child(db, "cn", "under-host")
            await operators_child(db, "cn_NUMA1", "under-cell")
            async with db.transaction() as tx:
                await tx.execute("INSERT INTO traits (name, created_at, updated_at) VALUES ('CUSTOM_MINE', 0, 0)")
                await tx.execute(
                    "INSERT INTO resource_classes (name, created_at, updated_at) VALUES ('CUSTOM_X', 0, 0)"
                )
                host = await tx.fetch_value("SELECT id FROM resource_providers WHERE uuid = $1", HOST)
                await tx.execute("INSERT INTO provider_traits (provider_id, trait) VALUES ($1, 'CUSTOM_MINE')", host)
                await tx.execute(
                    "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, $2)", host, AGGREGATE
                )
                await tx.execute(
                    "INSERT INTO inventories (provider_id, resource_class, total, reserved, min_unit, max_unit,"
                    " step_size, allocation_ratio) VALUES ($1, 'CUSTOM_X', 3, 0, 1, 3, 1, 1)",
                    host,
                )
                await tx.execute("UPDATE inventories SET allocation_ratio = 5 WHERE resource_class = 'DISK_GB'")
            before = await all_rows(db)
            await write(db, numa(2))
            assert await all_rows(db) == before
            bigger = HostProviders(HOST, "cn", {"DISK_GB": Inventory(200)}, ["COMPUTE_NODE", "CUSTOM_MINE"], cells(1))
            await write(db, bigger)
            assert await traits(db, "cn") == {"COMPUTE_NODE", "CUSTOM_MINE"}
            assert await aggregates(db) == {("cn", AGGREGATE)}
            assert (await inventory(db))["cn"] == {"DISK_GB": (200, 0), "CUSTOM_X": (3, 0)}
            ratio = "SELECT allocation_ratio FROM inventories WHERE resource_class = 'DISK_GB'"
            assert await db.fetch_value(ratio) == 5.0
            assert (await tree(db))["under-cell"] == "cn_NUMA1", "a cell with an operator's child stays"
            assert "cn_NUMA1" not in await inventory(db)
            await write(db, msgspec.structs.replace(bigger, traits=["COMPUTE_NODE"]))
            assert await traits(db, "cn") == {"COMPUTE_NODE", "CUSTOM_MINE"}

    run(scenario())


@pytest.mark.parametrize(
    "aggregate_ratio, effective, then",
    [(None, 16.0, 2.0), (3.0, 3.0, 3.0)],
    ids=["unless an aggregate says otherwise", "never against an aggregate"],
)
def test_changed_host_ratio_applies(database, aggregate_ratio, effective, then):
    async def scenario():
        async with database() as db:

            def host_with_ratio(ratio: float) -> HostProviders:
                return HostProviders(HOST, "cn", {"VCPU": Inventory(8, allocation_ratio=ratio)})

            await write(db, host_with_ratio(16.0))
            async with db.transaction() as tx:
                if aggregate_ratio:
                    await tx.execute(
                        "UPDATE inventories SET allocation_ratio = $1, aggregate_ratio = $1", aggregate_ratio
                    )
            ratios = "SELECT allocation_ratio, own_ratio FROM inventories"
            await write(db, host_with_ratio(16.0))
            assert await db.fetch_one(ratios) == {"allocation_ratio": effective, "own_ratio": 16.0}
            await write(db, host_with_ratio(2.0))
            assert await db.fetch_one(ratios) == {"allocation_ratio": then, "own_ratio": 2.0}

    run(scenario())


def test_provider_with_taken_name_is_left_out_and_logged(database, caplog):
    async def scenario():
        async with database() as db:
            await write(db, flat("99999999-2222-4333-8444-555555555555", "cn_NUMA1"))
            await write(db, flat("88888888-2222-4333-8444-555555555555", "san"))
            with caplog.at_level(logging.WARNING):
                await write(db, msgspec.structs.replace(numa(), sharing=[san()]))
            assert set(await tree(db)) == {"cn", "cn_NUMA0", "cn_NUMA1", "san"}
            assert (await tree(db))["cn_NUMA1"] is None
            assert "provider cn_NUMA1 is left out" in caplog.text
            assert "provider san is left out" in caplog.text

    run(scenario())


# Sharing providers


def test_hosts_share_one_provider(database):
    async def scenario():
        async with database() as db:
            await write(db, diskless(1), diskless(2))
            assert await tree(db) == {"cn1": None, "cn2": None, "san": None}
            assert await aggregates(db) == {("cn1", AGGREGATE), ("cn2", AGGREGATE), ("san", AGGREGATE)}
            assert await traits(db, "san") == {SHARING_TRAIT, "STORAGE_DISK_SSD"}
            before = await all_rows(db)
            await write(db, diskless(1))
            await write(db, diskless(2))
            assert await all_rows(db) == before
            await write(db, diskless(1, total=500))
            assert (await inventory(db))["san"] == {"DISK_GB": (500, 0)}

    run(scenario())


def test_sharing_provider_is_deleted_with_last_host(database):
    async def scenario():
        async with database() as db:
            await write(db, diskless(1), diskless(2))
            alone = msgspec.structs.replace(diskless(1), sharing=[])
            await write(db, alone)
            assert await aggregates(db) == {("cn2", AGGREGATE), ("san", AGGREGATE)}
            user = await claim_new(db, san={"DISK_GB": 1})
            other = msgspec.structs.replace(diskless(2), sharing=[])
            await write(db, other)
            assert (await inventory(db))["san"] == {"DISK_GB": (1000, 1000)}, "closed while in use"
            async with db.transaction() as tx:
                await release(tx, user)
            await write(db, diskless(1))
            assert (await inventory(db))["san"] == {"DISK_GB": (1000, 0)}
            await write(db, alone)
            assert set(await tree(db)) == {"cn1", "cn2"}

    run(scenario())


def test_host_changes_sharing_aggregate(database):
    async def scenario():
        async with database() as db:
            other = "b0000000-0000-4000-8000-000000000001"
            await write(db, diskless(1))
            await write(db, diskless(1, aggregate=other))
            assert await aggregates(db) == {("cn1", other), ("san", other)}

    run(scenario())


# Changes of shape


def test_reshape_moves_allocations_and_back(database):
    async def scenario():
        async with database() as db:
            await write(db, flat())
            large = await claim_new(db, cn={"VCPU": 7, "MEMORY_MB": 600, "DISK_GB": 10})
            small = await claim_new(db, cn={"VCPU": 4, "MEMORY_MB": 300})
            generation = "SELECT generation FROM consumers WHERE uuid = $1"
            before = await db.fetch_value(generation, large)
            await write(db, numa())
            assert await allocations(db) == {
                (large, "cn"): {"DISK_GB": 10},
                (large, "cn_NUMA0"): {"VCPU": 7, "MEMORY_MB": 600},
                (small, "cn_NUMA1"): {"VCPU": 4, "MEMORY_MB": 300},
            }
            assert await db.fetch_value(generation, large) == before + 1
            assert (await inventory(db))["cn"] == {"DISK_GB": (100, 0)}
            await write(db, flat())
            assert await allocations(db) == {
                (large, "cn"): {"VCPU": 7, "MEMORY_MB": 600, "DISK_GB": 10},
                (small, "cn"): {"VCPU": 4, "MEMORY_MB": 300},
            }
            await write(db, flat())
            assert await tree(db) == {"cn": None}

    run(scenario())


@pytest.mark.parametrize("aggregate_ratio", [None, 3.0], ids=["of an operator", "of an aggregate"])
def test_reshape_keeps_ratios(database, aggregate_ratio):
    async def scenario():
        async with database() as db:
            await write(db, flat())
            async with db.transaction() as tx:
                await tx.execute(
                    "UPDATE inventories SET allocation_ratio = 3, aggregate_ratio = $1 WHERE resource_class = 'VCPU'",
                    aggregate_ratio,
                )
            users = [await claim_new(db, cn={"VCPU": 15}) for _ in range(3)]
            await write(db, numa(2, vcpus=15))
            assert len(users) == len({consumer for consumer, _ in await allocations(db)}) == 3
            rows = await db.fetch("SELECT allocation_ratio, aggregate_ratio FROM inventories WHERE total = 15")
            assert rows == [{"allocation_ratio": 3.0, "aggregate_ratio": aggregate_ratio}] * 2

    run(scenario())


def test_reshape_moves_disk_to_sharing_provider(database):
    async def scenario():
        async with database() as db:
            await write(db, diskless(2))
            await claim_new(db, san={"DISK_GB": 900})
            user_host = flat("host-uuid-1", "cn1")
            await write(db, user_host)
            user = await claim_new(db, cn1={"VCPU": 1, "DISK_GB": 50})
            await write(db, diskless(1))
            found = await allocations(db)
            assert found[user, "cn1"] == {"VCPU": 1}
            assert found[user, "san"] == {"DISK_GB": 50}

    run(scenario())


@pytest.mark.parametrize(
    "claims",
    [
        [{"VCPU": 12}],  # no cell has this capacity
        [{"VCPU": 6}, {"VCPU": 6}, {"VCPU": 3}],  # no cell has this much left
    ],
    ids=["too large", "too many"],
)
def test_host_keeps_shape_if_allocations_do_not_fit(database, caplog, claims):
    async def scenario():
        async with database() as db:
            other = "99999999-2222-4333-8444-555555555555"
            await write(db, flat(), flat(other, "free"))
            users = [await claim_new(db, cn=amounts) for amounts in claims]
            before = await allocations(db)
            with caplog.at_level(logging.WARNING):
                await write(db, numa(), numa(uuid=other, name="free"))
            assert "host cn keeps the shape it had" in caplog.text
            assert await allocations(db) == before
            assert set(await tree(db)) == {"cn", "free", "free_NUMA0", "free_NUMA1"}
            assert (await inventory(db))["cn"]["VCPU"] == (16, 0)
            async with db.transaction() as tx:
                for user in users:
                    await release(tx, user)
            await write(db, numa())
            assert "cn_NUMA1" in await tree(db)

    run(scenario())


def test_host_that_keeps_shape_leaves_no_sharing_provider(database):
    async def scenario():
        async with database() as db:
            await write(db, flat("host-uuid-1", "cn1"))
            await claim_new(db, cn1={"DISK_GB": 50})
            await write(db, diskless(1, total=10))
            assert set(await tree(db)) == {"cn1"}
            assert await aggregates(db) == set()

    run(scenario())


def test_nested_uuids_are_stable():
    """Clients store these uuids."""
    assert child_uuid(HOST, "NUMA0") == "6fefc9c5-490f-5e07-b1e0-29943dd0b78e"
    assert sharing_uuid("san") != sharing_uuid("nas")


def test_concurrent_claims_survive_reshape(postgresql_url):
    """Other processes claim and release while the host registers with a new shape."""

    async def busy(db: Database, number: int, stop: asyncio.Event, some: asyncio.Event) -> list[str]:
        kept: list[str] = []
        for turn in itertools.count():
            if stop.is_set():
                return kept
            user = consumer()
            uuids = [row["uuid"] for row in await db.fetch(_WITH_CPU)]
            async with db.transaction() as tx:
                done = await claim(tx, user, {uuids[(number + turn) % len(uuids)]: {"VCPU": 1}})
            if done and turn % 4 == 0 and len(kept) < 3:
                kept.append(user.uuid)
                some.set()
            elif done:
                await retry(lambda user=user: release_attempt(db, {"consumer": user.uuid}))
        return kept

    async def reshape(db: Database, stop: asyncio.Event, some: asyncio.Event) -> None:
        turn = 0
        while turn < 12 or not some.is_set():
            await write(db, numa() if turn % 2 == 0 else flat())
            await asyncio.sleep(0.02)
            turn += 1
        stop.set()

    async def scenario():
        async with opened(postgresql_url) as db, opened(postgresql_url) as other:
            await write(db, flat())
            stop, some = asyncio.Event(), asyncio.Event()
            *kept, _ = await asyncio.gather(*(busy(other, n, stop, some) for n in range(4)), reshape(db, stop, some))
            mine = sorted(user for users in kept for user in users)
            assert mine
            assert sorted(user for user, _ in await allocations(db)) == mine
            assert all(amounts == {"VCPU": 1} for amounts in (await allocations(db)).values())
            assert sorted(row["uuid"] for row in await db.fetch("SELECT uuid FROM consumers")) == mine

    run(scenario())


_WITH_CPU = """
SELECT p.uuid FROM resource_providers p JOIN inventories i ON i.provider_id = p.id WHERE i.resource_class = 'VCPU'
ORDER BY p.id
"""


def test_cache_of_valid_names_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_providers, "MAX_VALID_NAMES", 50)
    for number in range(200):
        host = msgspec.structs.replace(flat(), traits=[f"CUSTOM_{number}"])
        assert host_providers.validation_error(host) is None
    assert len(host_providers._valid_names) < 100
