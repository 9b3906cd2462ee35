"""Findings of the doctor, except those about moves and volumes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kilonova import clock, doctor
from kilonova.compute.servers.states import (
    BUILDING,
    ERROR,
    SHUTDOWN,
    STOPPED,
)
from kilonova.doctor import Finding, examine
from kilonova.doctor.remedies import REMEDIES
from kilonova.hosts.messages import GuestState
from kilonova.store import Database
from tests.doctor.support import (
    OTHER,
    SERVER,
    Opener,
    add_allocation,
    add_consistent_server,
    add_hosts,
    add_operation,
    add_port,
    add_provider,
    add_server,
    allocate,
    change,
    findings,
    flavor,
    guest,
    insert,
)
from tests.support import run


def test_consistent_cloud_has_no_findings(database: Opener) -> None:
    assert findings(database, add_consistent_server, guest()) == []


def test_stopped_and_failed_servers_have_no_findings(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, OTHER, vm_state=STOPPED, power_state=SHUTDOWN)
        await allocate(db, OTHER)
        await add_server(db, "failed", vm_state=ERROR, power_state=0, host=None, hypervisor_hostname=None)

    assert findings(database, prepare, guest(identity=OTHER, power="shutdown")) == []


def test_consumers_of_other_types_are_ignored(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await allocate(db, "accelerator", kind="CUSTOM")

    assert findings(database, prepare) == []


@pytest.mark.parametrize(
    "guests, found",
    [
        ([], [("guest missing", SERVER)]),
        ([guest(), guest(identity=OTHER)], [("guest without server", OTHER)]),
        ([guest("sim-002")], [("guest on the wrong host", SERVER)]),
        ([guest(), guest("sim-002")], [("guest on the wrong host", SERVER)]),
        ([guest(power="shutdown")], [("guest power differs", SERVER)]),
    ],
)
def test_wrong_guests(database: Opener, guests: list[tuple[str, GuestState]], found: list[tuple[str, str]]) -> None:
    assert findings(database, add_consistent_server, *guests) == found


def test_examine_without_guests(database: Opener) -> None:
    async def collect() -> list[Finding]:
        async with database() as db:
            await add_consistent_server(db)
            return await examine(db)

    assert run(collect()) == []


def test_wrong_allocations(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await allocate(db, "nobody")
        await add_server(db, OTHER)
        await add_server(db, "moved", host="sim-001")
        await allocate(db, "moved", provider=2)

    guests = [guest(), guest(identity=OTHER), guest(identity="moved")]
    assert findings(database, prepare, *guests) == [
        ("allocation without server", "nobody"),
        ("allocation on the wrong host", "moved"),
        ("server without allocation", OTHER),
    ]


def test_allocations_are_summed_over_nested_and_sharing_providers(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_provider(db, 3, "cell", parent_id=1, root_id=1)
        await add_provider(db, 4, "pool", "DISK_GB")
        await insert(db, "traits", name="MISC_SHARES_VIA_AGGREGATE")
        await insert(db, "provider_traits", provider_id=4, trait="MISC_SHARES_VIA_AGGREGATE")
        specs = {"resources1:VCPU": "2", "resources:DISK_GB": "3"}
        await add_server(db, OTHER, flavor=flavor(1, **specs))
        await allocate(db, OTHER)
        await add_allocation(db, OTHER, 3, "VCPU", 2)
        await add_allocation(db, OTHER, 4, "DISK_GB", 3)

    assert findings(database, prepare, guest(identity=OTHER)) == []


@pytest.mark.parametrize(
    "values, found",
    [
        ({"flavor": flavor(2), "vcpus": 2}, "allocation differs from needs"),
        ({"flavor": flavor(1, **{"resources:DISK_GB": "1"})}, "allocation differs from needs"),
        ({"flavor": flavor(1, **{"resources:DISK_GB": "much"})}, "server's needs cannot be read"),
    ],
)
def test_allocation_that_differs_from_flavor(database: Opener, values: dict[str, Any], found: str) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, OTHER, **values)
        await allocate(db, OTHER)

    assert findings(database, prepare, guest(identity=OTHER)) == [(found, OTHER)]


def test_wrong_quota_usage(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await change(db, "UPDATE servers SET ram = 512")

    assert findings(database, prepare, guest()) == [("quota counts wrongly", SERVER)]


def test_allocation_on_provider_outside_of_hosts(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_provider(db, 3, "elsewhere")
        await add_server(db, OTHER)
        await allocate(db, OTHER, provider=3)

    assert findings(database, prepare, guest(identity=OTHER)) == [("allocation on the wrong host", OTHER)]


def test_consumer_without_allocations(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await insert(db, "consumers", uuid="nobody", type="CUSTOM")

    assert findings(database, prepare) == [("consumer without allocations", "nobody")]


def test_provider_over_capacity(database: Opener) -> None:
    async def collect() -> list[Finding]:
        async with database() as db:
            await add_consistent_server(db)
            await allocate(db, "accelerator", kind="CUSTOM", used=7)
            assert await examine(db) == []
            await change(db, "UPDATE inventories SET reserved = 1 WHERE provider_id = 1")
            return await examine(db)

    (found,) = run(collect())
    assert (found.kind, found.subject) == ("provider over capacity", "host-1")
    assert found.detail == "8 VCPU in use on sim-001, which has 7: (total 8 - reserved 1) * ratio 1"
    assert "raise it again" in found.remedy


def test_every_kind_of_finding_has_a_remedy() -> None:
    source = "".join(file.read_text() for file in Path(doctor.__file__).parent.glob("*.py"))
    kinds = set(re.findall(r'Finding\(\s*"([^"]+)"', source))
    assert len(kinds) > 15
    assert kinds == REMEDIES.keys()


def test_allocation_without_inventory(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_consistent_server(db)
        await execute_without_constraints(db, "DELETE FROM inventories WHERE provider_id = 1")

    assert findings(database, prepare, guest()) == [("allocation without inventory", SERVER)]


async def execute_without_constraints(db: Database, sql: str) -> None:
    """Execute a statement that foreign keys would prevent."""
    if db.dialect == "postgresql":
        async with db.transaction() as tx:
            await tx.execute("SET LOCAL session_replication_role = replica")
            await tx.execute(sql)
    else:
        import apsw

        path = (await db.fetch_one("SELECT file FROM pragma_database_list"))["file"]  # type: ignore[index]
        connection = apsw.Connection(path)
        connection.set_busy_timeout(60_000)
        connection.execute(sql)
        connection.close()


async def add_aggregate(db: Database, *hosts: str) -> None:
    await insert(db, "aggregates", id=1, uuid="rack-1", name="rack")
    for host in hosts:
        await insert(db, "aggregate_hosts", aggregate_id=1, host=host)


def test_mirrored_aggregates_have_no_findings(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_aggregate(db, "sim-001", "deleted host")
        await insert(db, "provider_aggregates", provider_id=1, aggregate_uuid="rack-1")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="an aggregate of placement's own")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="rack-1", reported=True)

    assert findings(database, prepare) == []


def test_aggregates_that_are_not_mirrored(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_aggregate(db, "sim-001")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="rack-1")

    assert findings(database, prepare) == [("aggregate not mirrored", "rack-1")] * 2


def test_disabled_services_that_are_not_mirrored(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await insert(db, "traits", name="COMPUTE_STATUS_DISABLED")
        await insert(db, "provider_traits", provider_id=2, trait="COMPUTE_STATUS_DISABLED")
        await change(db, "UPDATE services SET disabled = TRUE WHERE id = 2")
        assert await examine(db) == []
        await change(db, "UPDATE services SET disabled = NOT disabled")

    assert findings(database, prepare) == [
        ("disabled service not mirrored", "host-1"),
        ("disabled service not mirrored", "host-2"),
    ]


@pytest.mark.parametrize(
    "policy, most, hosts, broken",
    [
        ("affinity", None, ("sim-001", "sim-001"), False),
        ("affinity", None, ("sim-001", "sim-002"), True),
        ("soft-affinity", None, ("sim-001", "sim-002"), False),
        ("anti-affinity", None, ("sim-001", "sim-002"), False),
        ("anti-affinity", None, ("sim-001", "sim-001"), True),
        ("anti-affinity", 2, ("sim-001", "sim-001"), False),
        ("anti-affinity", 2, ("sim-001", "sim-001", "sim-001"), True),
        ("soft-anti-affinity", None, ("sim-001", "sim-001"), False),
    ],
)
def test_broken_server_group_policies(
    database: Opener, policy: str, most: int | None, hosts: tuple[str, ...], broken: bool
) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await insert(db, "server_groups", id="group-1", policy=policy, max_server_per_host=most)
        for number, host in enumerate(hosts):
            name = f"member-{number}"
            await add_server(db, name, host=host, hypervisor_hostname=host)
            await allocate(db, name, provider=int(host[-1]))
            await insert(db, "server_group_members", server_id=name, group_id="group-1")

    guests = [guest(host, f"member-{number}") for number, host in enumerate(hosts)]
    assert findings(database, prepare, *guests) == [("server group policy broken", "group-1")] * broken


def test_missing_and_orphaned_ports(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db)
        await allocate(db)
        await add_port(db, "port-2", device="nobody")

    assert findings(database, prepare, guest()) == [
        ("port without server", "port-2"),
        ("server's port missing", SERVER),
    ]


def test_building_server_without_operation(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_server(db, OTHER, vm_state=BUILDING, power_state=0, host=None, hypervisor_hostname=None)

    assert findings(database, prepare) == [("transient state without operation", OTHER)]


def test_running_and_just_finished_operations_are_skipped(database: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)

    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, vm_state=BUILDING)
        await add_operation(db)
        await allocate(db, OTHER)
        await add_operation(db, id="operation-2", server_id=OTHER, kind="delete", finished_at=clock.now())

    assert findings(database, prepare, guest(identity=OTHER)) == []


def test_operations_finished_since_guests_were_read_are_skipped(database: Opener) -> None:
    async def collect() -> list[list[Finding]]:
        async with database() as db:
            await add_consistent_server(db)
            await add_operation(db, finished_at=clock.now() - 100)
            return [await examine(db, [], since=since) for since in (None, clock.now() - 1000)]

    late, in_time = run(collect())
    assert [found.kind for found in late] == ["guest missing"]
    assert in_time == []


@pytest.mark.parametrize(
    "values",
    [
        {"run_at": 1.0, "lease_until": 1.0},
        {"state": "undoing", "attempt": 9, "trouble": '{"type": "Failed", "message": "no way back"}'},
        {"state": "queued", "trouble": '{"type": "Unknown", "message": "no such step"}'},
    ],
)
def test_stuck_operations(database: Opener, values: dict[str, Any]) -> None:
    async def prepare(db: Database) -> None:
        await add_operation(db, **values)

    assert findings(database, prepare) == [("operation stuck", "operation-1")]
