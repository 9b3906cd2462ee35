"""The doctor finds each thing that can disagree, and nothing where all agrees or is still under way."""

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
    hold,
    insert,
    sound,
)
from tests.support import run


def test_all_agrees(database: Opener) -> None:
    assert findings(database, sound, guest()) == []


def test_a_stopped_server_and_one_that_failed_are_fine(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, OTHER, vm_state=STOPPED, power_state=SHUTDOWN)
        await allocate(db, OTHER)
        await add_server(db, "failed", vm_state=ERROR, power_state=0, host=None, hypervisor_hostname=None)

    assert findings(database, prepare, guest(identity=OTHER, power="shutdown")) == []


def test_consumers_that_are_no_servers_are_not_ours(database: Opener) -> None:
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
def test_guests(database: Opener, guests: list[tuple[str, GuestState]], found: list[tuple[str, str]]) -> None:
    assert findings(database, sound, *guests) == found


def test_without_guests_only_the_database_is_compared(database: Opener) -> None:
    async def look() -> list[Finding]:
        async with database() as db:
            await sound(db)
            return await examine(db)

    assert run(look()) == []


def test_allocations(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
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


def test_a_server_holds_what_it_needs_summed_over_nested_and_sharing_providers(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_provider(db, 3, "cell", parent_id=1, root_id=1)
        await add_provider(db, 4, "pool", "DISK_GB")
        await insert(db, "traits", name="MISC_SHARES_VIA_AGGREGATE")
        await insert(db, "provider_traits", provider_id=4, trait="MISC_SHARES_VIA_AGGREGATE")
        specs = {"resources1:VCPU": "2", "resources:DISK_GB": "3"}
        await add_server(db, OTHER, flavor=flavor(1, **specs))
        await allocate(db, OTHER)
        await hold(db, OTHER, 3, "VCPU", 2)
        await hold(db, OTHER, 4, "DISK_GB", 3)

    assert findings(database, prepare, guest(identity=OTHER)) == []


@pytest.mark.parametrize(
    "values, found",
    [
        ({"flavor": flavor(2), "vcpus": 2}, "allocation differs from needs"),
        ({"flavor": flavor(1, **{"resources:DISK_GB": "1"})}, "allocation differs from needs"),
        ({"flavor": flavor(1, **{"resources:DISK_GB": "much"})}, "server's needs cannot be read"),
    ],
)
def test_a_server_that_holds_something_else_than_it_needs(database: Opener, values: dict[str, Any], found: str) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, OTHER, **values)
        await allocate(db, OTHER)

    assert findings(database, prepare, guest(identity=OTHER)) == [(found, OTHER)]


def test_what_the_quota_counts(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await change(db, "UPDATE servers SET ram = 512")

    assert findings(database, prepare, guest()) == [("quota counts wrongly", SERVER)]


def test_allocations_on_a_provider_of_no_host_are_on_the_wrong_one(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_provider(db, 3, "elsewhere")
        await add_server(db, OTHER)
        await allocate(db, OTHER, provider=3)

    assert findings(database, prepare, guest(identity=OTHER)) == [("allocation on the wrong host", OTHER)]


def test_a_consumer_that_holds_nothing(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await insert(db, "consumers", uuid="nobody", type="CUSTOM")

    assert findings(database, prepare) == [("consumer without allocations", "nobody")]


def test_a_provider_over_capacity(database: Opener) -> None:
    async def look() -> list[Finding]:
        async with database() as db:
            await sound(db)
            await allocate(db, "accelerator", kind="CUSTOM", used=7)
            assert await examine(db) == []
            await change(db, "UPDATE inventories SET reserved = 1 WHERE provider_id = 1")
            return await examine(db)

    (found,) = run(look())
    assert (found.kind, found.subject) == ("provider over capacity", "host-1")
    assert found.detail == "8 VCPU in use on sim-001, which has 7: (total 8 - reserved 1) * ratio 1"
    assert "raise them again" in found.remedy


def test_every_finding_says_what_to_do() -> None:
    source = "".join(file.read_text() for file in Path(doctor.__file__).parent.glob("*.py"))
    kinds = set(re.findall(r'Finding\(\s*"([^"]+)"', source))
    assert len(kinds) > 15
    assert kinds == REMEDIES.keys()


def test_an_allocation_without_inventory(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await sound(db)
        await unlinked(db, "DELETE FROM inventories WHERE provider_id = 1")

    assert findings(database, prepare, guest()) == [("allocation without inventory", SERVER)]


async def unlinked(db: Database, sql: str) -> None:
    """Break what the database itself would not let be broken."""
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


def test_aggregates_that_placement_has_too(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_aggregate(db, "sim-001", "no host any more")
        await insert(db, "provider_aggregates", provider_id=1, aggregate_uuid="rack-1")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="an aggregate of placement's own")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="rack-1", reported=True)

    assert findings(database, prepare) == []


def test_aggregates_that_differ(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_aggregate(db, "sim-001")
        await insert(db, "provider_aggregates", provider_id=2, aggregate_uuid="rack-1")

    assert findings(database, prepare) == [("aggregate not mirrored", "rack-1")] * 2


def test_disabled_services(database: Opener) -> None:
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
def test_server_groups(database: Opener, policy: str, most: int | None, hosts: tuple[str, ...], broken: bool) -> None:
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


def test_ports(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db)
        await allocate(db)
        await add_port(db, "port-2", device="nobody")

    assert findings(database, prepare, guest()) == [
        ("port without server", "port-2"),
        ("server's port missing", SERVER),
    ]


def test_building_without_an_operation(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_server(db, OTHER, vm_state=BUILDING, power_state=0, host=None, hypervisor_hostname=None)

    assert findings(database, prepare) == [("transient state without operation", OTHER)]


def test_what_is_under_way_or_has_just_ended_is_left_alone(database: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)

    async def prepare(db: Database) -> None:
        await add_hosts(db)
        await add_server(db, vm_state=BUILDING)
        await add_operation(db)
        await allocate(db, OTHER)
        await add_operation(db, id="operation-2", server_id=OTHER, kind="delete", finished_at=clock.now())

    assert findings(database, prepare, guest(identity=OTHER)) == []


def test_what_has_ended_since_the_first_host_was_asked_is_left_alone(database: Opener) -> None:
    async def look() -> list[list[Finding]]:
        async with database() as db:
            await sound(db)
            await add_operation(db, finished_at=clock.now() - 100)
            return [await examine(db, [], since=since) for since in (None, clock.now() - 1000)]

    late, in_time = run(look())
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
