"""Aggregates: create, change and delete them; their hosts, metadata and zones; and their mirror in placement."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.placement.claims import Consumer, claim
from tests.compute.hypervisors.test_hypervisors import add_child_provider
from tests.compute.servers.support import act as act_on_server
from tests.compute.servers.support import rules, wait_for_fields
from tests.support import run
from tests.support.cloud import Cloud, cloud, fault, insert_server, put_server
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves

NEW = {"availability_zone", "created_at", "deleted", "deleted_at", "id", "name", "updated_at"}
ALL_FIELDS = NEW | {"hosts", "metadata"}


async def create(c: Cloud, name: str, zone: str | None = None, version: str = "latest", **options: Any) -> Any:
    body: dict[str, Any] = {"name": name}
    if zone is not None:
        body["availability_zone"] = zone
    answer = await c.post("/os-aggregates", {"aggregate": body}, as_="admin", version=version, **options)
    assert answer.status == 200, answer.body
    return answer.json()["aggregate"]


async def act(c: Cloud, number: int, verb: str, body: dict[str, Any], version: str = "latest", **options: Any) -> Any:
    path = f"/os-aggregates/{number}/action"
    return await c.post(path, {verb: body}, **{"as_": "admin", "version": version, **options})


async def add(c: Cloud, number: int, *hosts: str) -> None:
    for host in hosts:
        answer = await act(c, number, "add_host", {"host": host})
        assert answer.status == 200, answer.body


async def shown(c: Cloud, number: int) -> Any:
    answer = await c.get(f"/os-aggregates/{number}", as_="admin", version="latest")
    assert answer.status == 200, answer.body
    return answer.json()["aggregate"]


async def provider_aggregates(c: Cloud, uuid: str) -> list[str]:
    rows = await c.db.fetch(
        """
        SELECT h.host FROM provider_aggregates a JOIN resource_providers p ON p.id = a.provider_id
        JOIN hypervisors h ON h.uuid = p.uuid WHERE a.aggregate_uuid = $1 ORDER BY h.host
        """,
        uuid,
    )
    return [row["host"] for row in rows]


async def change_number(c: Cloud, host: str) -> int:
    """The host's number in the change sequence that schedulers follow."""
    found: int = await c.db.fetch_value(
        "SELECT p.facts FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = $1", host
    )
    return found


async def ratio(c: Cloud, host: str, resource_class: str = "VCPU") -> float:
    found: float = await c.db.fetch_value(
        """
        SELECT i.allocation_ratio FROM inventories i JOIN resource_providers p ON p.id = i.provider_id
        JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = $1 AND i.resource_class = $2
        """,
        host,
        resource_class,
    )
    return found


def test_id_of_deleted_aggregate_is_not_reused(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            first = await create(c, "first")
            assert (await c.delete(f"/os-aggregates/{first['id']}", as_="admin")).status == 200
            assert (await create(c, "second"))["id"] > first["id"]

    run(scenario())


@proves(
    "GET /os-aggregates",
    "POST /os-aggregates",
    "GET /os-aggregates/{aggregate_id}",
    "PUT /os-aggregates/{aggregate_id}",
    "DELETE /os-aggregates/{aggregate_id}",
)
def test_create_show_update_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            made = await create(c, "fast", "east")
            assert set(made) == NEW | {"uuid"}
            assert (made["name"], made["availability_zone"]) == ("fast", "east")
            assert (made["deleted"], made["deleted_at"], made["updated_at"]) == (False, None, None)
            whole = await shown(c, made["id"])
            assert whole == {**made, "hosts": [], "metadata": {"availability_zone": "east"}}
            plain = await create(c, "plain")
            assert plain["availability_zone"] is None
            listed = (await c.get("/os-aggregates", as_="admin", version="latest")).json()["aggregates"]
            assert listed == [whole, {**plain, "hosts": [], "metadata": {}}]
            path = f"/os-aggregates/{made['id']}"
            body = {"aggregate": {"name": "  slow ", "availability_zone": "west"}}
            changed = (await c.put(path, body, as_="admin", version="latest")).json()["aggregate"]
            assert changed == await shown(c, made["id"])
            assert (changed["name"], changed["availability_zone"]) == ("slow", "west")
            assert changed["metadata"] == {"availability_zone": "west"}
            assert changed["updated_at"] > changed["created_at"]
            unzoned = await c.put(path, {"aggregate": {"availability_zone": None}}, as_="admin")
            assert (unzoned.json()["aggregate"]["availability_zone"], unzoned.json()["aggregate"]["metadata"]) == (
                None,
                {},
            )
            gone = await c.delete(path, as_="admin")
            assert (gone.status, gone.body) == (200, b"")
            assert (await c.get(path, as_="admin")).status == 404
            assert (await c.delete(path, as_="admin")).status == 404

    run(scenario())


def test_uuid_is_shown_from_2_41(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            for version, more in (("2.40", set()), ("2.41", {"uuid"})):
                made = await create(c, f"of {version}", version=version)
                assert set(made) == NEW | more
                path = f"/os-aggregates/{made['id']}"
                answers = [
                    await c.get(path, as_="admin", version=version),
                    await c.put(path, {"aggregate": {"name": f"new {version}"}}, as_="admin", version=version),
                    await act(c, made["id"], "set_metadata", {"metadata": {"a": "b"}}, version),
                    await act(c, made["id"], "add_host", {"host": "host1"}, version),
                    await act(c, made["id"], "remove_host", {"host": "host1"}, version),
                ]
                for answer in answers:
                    assert set(answer.json()["aggregate"]) == ALL_FIELDS | more
                listed = (await c.get("/os-aggregates", as_="admin", version=version)).json()["aggregates"]
                assert set(listed[0]) == ALL_FIELDS | more

    run(scenario())


@proves(
    "POST /os-aggregates/{aggregate_id}/action#add_host",
    "POST /os-aggregates/{aggregate_id}/action#remove_host",
)
def test_adding_and_removing_hosts_updates_placement(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            made = await create(c, "fast")
            before = await change_number(c, "host1")
            answer = await act(c, made["id"], "add_host", {"host": "host1"})
            assert answer.json()["aggregate"] == await shown(c, made["id"])
            assert answer.json()["aggregate"]["hosts"] == ["host1"]
            # Adding a host does not change updated_at of the aggregate.
            assert answer.json()["aggregate"]["updated_at"] is None
            assert await provider_aggregates(c, made["uuid"]) == ["host1"]
            assert await change_number(c, "host1") > before
            await add(c, made["id"], "host2")
            refused = fault(await act(c, made["id"], "add_host", {"host": "host1"}))
            assert refused == (409, "conflictingRequest", f"Aggregate {made['id']} already has host host1.")
            # Unknown hosts and aggregates.
            for verb in ("add_host", "remove_host"):
                assert (await act(c, made["id"], verb, {"host": "host9"})).status == 404
                assert (await act(c, 99, verb, {"host": "host1"})).status == 404
            refused = fault(await c.delete(f"/os-aggregates/{made['id']}", as_="admin"))
            assert refused[0] == 400
            assert "still has hosts" in refused[2]
            answer = await act(c, made["id"], "remove_host", {"host": "host1"})
            assert answer.json()["aggregate"]["hosts"] == ["host2"]
            assert await provider_aggregates(c, made["uuid"]) == ["host2"]
            assert fault(await act(c, made["id"], "remove_host", {"host": "host1"}))[0] == 404
            await act(c, made["id"], "remove_host", {"host": "host2"})
            assert (await c.delete(f"/os-aggregates/{made['id']}", as_="admin")).status == 200
            assert await c.db.fetch_value("SELECT COUNT(*) FROM provider_aggregates") == 0

    run(scenario())


@proves("POST /os-aggregates/{aggregate_id}/action#set_metadata")
def test_set_metadata_merges_keys_and_null_removes_them(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            made = await create(c, "fast", "east")
            await add(c, made["id"], "host1")

            async def put(**values: str | None) -> dict[str, str]:
                answer = await act(c, made["id"], "set_metadata", {"metadata": values})
                assert answer.status == 200, answer.body
                assert answer.json()["aggregate"] == await shown(c, made["id"])
                found: dict[str, str] = answer.json()["aggregate"]["metadata"]
                return found

            before = await change_number(c, "host1")
            assert await put(ssd="true", gpu="") == {"availability_zone": "east", "ssd": "true", "gpu": ""}
            assert await change_number(c, "host1") > before
            assert await put(ssd="false", gpu=None, unknown=None) == {"availability_zone": "east", "ssd": "false"}
            assert await put() == {"availability_zone": "east", "ssd": "false"}
            assert await put(availability_zone="west") == {"availability_zone": "west", "ssd": "false"}
            assert await put(availability_zone=None) == {"ssd": "false"}
            assert (await shown(c, made["id"]))["availability_zone"] is None
            assert (await act(c, 99, "set_metadata", {"metadata": {"a": "b"}})).status == 404

    run(scenario())


def test_smallest_allocation_ratio_of_aggregates_applies(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            one, two = await create(c, "one"), await create(c, "two")
            await add(c, one["id"], "host1", "host2")
            await act(c, one["id"], "set_metadata", {"metadata": {"cpu_allocation_ratio": "2.5"}})
            assert [await ratio(c, "host1"), await ratio(c, "host2")] == [2.5, 2.5]
            await act(c, two["id"], "set_metadata", {"metadata": {"cpu_allocation_ratio": "1.5"}})
            assert await ratio(c, "host1") == 2.5
            await add(c, two["id"], "host1")
            assert [await ratio(c, "host1"), await ratio(c, "host2")] == [1.5, 2.5]
            assert await ratio(c, "host1", "MEMORY_MB") == 1.0
            await act(c, two["id"], "remove_host", {"host": "host1"})
            assert await ratio(c, "host1") == 2.5
            # Without aggregates the host's own ratio applies again.
            await act(c, one["id"], "set_metadata", {"metadata": {"cpu_allocation_ratio": None}})
            assert [await ratio(c, "host1"), await ratio(c, "host2")] == [4.0, 4.0]

    run(scenario())


def test_host_cannot_be_in_two_zones(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            east, west, plain = await create(c, "e", "east"), await create(c, "w", "west"), await create(c, "p")
            await add(c, east["id"], "host1")
            await add(c, plain["id"], "host1")
            refused = fault(await act(c, west["id"], "add_host", {"host": "host1"}))
            assert refused == (
                409,
                "conflictingRequest",
                f"Cannot add_host to aggregate {west['id']}. "
                "Reason: host host1 would be in several availability zones: east, west.",
            )
            assert (await shown(c, west["id"]))["hosts"] == []
            assert await provider_aggregates(c, west["uuid"]) == []
            # Two aggregates with the same zone are one zone.
            twin = await create(c, "e2", "east")
            await add(c, twin["id"], "host1")
            for answer in (
                await act(c, plain["id"], "set_metadata", {"metadata": {"availability_zone": "west", "a": "b"}}),
                await c.put(
                    f"/os-aggregates/{plain['id']}",
                    {"aggregate": {"name": "z", "availability_zone": "west"}},
                    as_="admin",
                ),
            ):
                status, kind, message = fault(answer)
                assert (status, kind) == (400, "badRequest")
                assert "several availability zones: east, west" in message
            # The refused changes left no trace.
            assert (await shown(c, plain["id"]))["metadata"] == {}
            assert (await shown(c, plain["id"]))["name"] == "p"
            same = await act(c, plain["id"], "set_metadata", {"metadata": {"availability_zone": "east"}})
            assert same.status == 200

    run(scenario())


def test_zone_of_host_with_servers_cannot_change(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            east, nova, plain = await create(c, "e", "east"), await create(c, "n", "nova"), await create(c, "p")
            await put_server(c.db, "s1", host="host1")
            await put_server(c.db, "gone", host="host2", deleted=True)
            refused = fault(await act(c, east["id"], "add_host", {"host": "host1"}))
            assert (refused[0], refused[2]) == (
                409,
                f"Cannot add_host to aggregate {east['id']}. "
                "Reason: one or more hosts contain servers, whose availability zone would change: host1.",
            )
            # Aggregates without a zone, and an aggregate for the default zone, do not change the zone of servers.
            await add(c, plain["id"], "host1")
            await add(c, nova["id"], "host1")
            assert (await act(c, nova["id"], "remove_host", {"host": "host1"})).status == 200
            for answer in (
                await act(c, plain["id"], "set_metadata", {"metadata": {"availability_zone": "east"}}),
                await c.put(f"/os-aggregates/{plain['id']}", {"aggregate": {"availability_zone": "east"}}, as_="admin"),
            ):
                assert fault(answer)[0] == 400
                assert "contain servers" in fault(answer)[2]
            await add(c, east["id"], "host2")
            await put_server(c.db, "s2", host="host2")
            refused = fault(await act(c, east["id"], "remove_host", {"host": "host2"}))
            assert refused[0] == 409
            assert "Cannot remove_host from aggregate" in refused[2]
            assert await provider_aggregates(c, east["uuid"]) == ["host2"]
            for zone in ("west", None):
                body = {"aggregate": {"availability_zone": zone}}
                assert (await c.put(f"/os-aggregates/{east['id']}", body, as_="admin")).status == 400
            body = {"aggregate": {"availability_zone": "east", "name": "renamed"}}
            assert (await c.put(f"/os-aggregates/{east['id']}", body, as_="admin")).status == 200
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET deleted = TRUE")
            assert (await act(c, east["id"], "remove_host", {"host": "host2"})).status == 200

    run(scenario())


def test_zones_of_hosts_of_moving_servers_cannot_change(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            east = await create(c, "e", "east")
            server = await c.boot_active()
            source = server["OS-EXT-SRV-ATTR:host"]
            destination = ({"sim-001", "sim-002"} - {source}).pop()

            async def refused(host: str) -> bool:
                answer = await act(c, east["id"], "add_host", {"host": host})
                assert (answer.status == 200) or "contain servers" in fault(answer)[2]
                return bool(answer.status == 409)

            with rules(c) as sim:
                sim.add_failure(destination, "receive", "hang", None, None)
                assert (await act_on_server(c, server["id"], "migrate", as_="admin", version="2.1")).status == 202
                await wait_for_fields(c, server["id"], OS_EXT_STS__task_state="resize_finish")
                assert await refused(destination), "it is on its way there"
                sim.clear()
            assert (await c.wait_until_settled(server["id"]))["status"] == "VERIFY_RESIZE"
            assert await refused(source), "it can be taken back there"
            assert (await act_on_server(c, server["id"], "confirmResize", as_="admin", version="2.1")).status == 204
            await c.wait_until_settled(server["id"])
            assert not await refused(source)

    run(scenario())


@pytest.mark.parametrize("place", ["root", "cell"])
def test_zone_change_waits_for_concurrent_claim(database_url: str, place: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            east = await create(c, "e", "east")
            root = await c.db.fetch_one("SELECT id, uuid FROM resource_providers")
            assert root is not None
            async with c.db.transaction() as tx:
                await add_child_provider(tx, "host1", "cell", {"VCPU": 4})
            provider = {"root": root["uuid"], "cell": "cell"}[place]
            async with c.db.transaction() as tx:
                assert await claim(tx, Consumer("s1", "p", "u"), {provider: {"VCPU": 1}})
                moving = asyncio.create_task(act(c, east["id"], "add_host", {"host": "host1"}))
                await asyncio.sleep(0.2)
                await insert_server(tx, "s1", host="host1")
            answer = await moving
            assert answer.status == 409, answer.body
            assert (await shown(c, east["id"]))["hosts"] == []

    run(scenario())


def test_concurrent_add_host_to_two_zones_is_refused_once(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            made = [await create(c, f"a{number}", f"zone{number}") for number in range(6)]
            answers = await asyncio.gather(*(act(c, each["id"], "add_host", {"host": "host1"}) for each in made))
            assert sorted(answer.status for answer in answers) == [200, *[409] * 5]
            assert await c.db.fetch_value("SELECT COUNT(*) FROM aggregate_hosts") == 1
            assert await c.db.fetch_value("SELECT COUNT(*) FROM provider_aggregates") == 1

    run(scenario())


def test_names_are_unique(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await create(c, "one")
            two = await create(c, "two")
            again = await c.post("/os-aggregates", {"aggregate": {"name": "one"}}, as_="admin")
            assert fault(again) == (409, "conflictingRequest", "Aggregate one already exists.")
            path = f"/os-aggregates/{two['id']}"
            assert (await c.put(path, {"aggregate": {"name": "one"}}, as_="admin")).status == 409
            assert (await c.put(path, {"aggregate": {"name": "two"}}, as_="admin")).status == 200
            at_once = await asyncio.gather(
                *(c.post("/os-aggregates", {"aggregate": {"name": "new"}}, as_="admin") for _ in range(5))
            )
            assert sorted(answer.status for answer in at_once) == [200, 409, 409, 409, 409]

    run(scenario())


@pytest.mark.parametrize(
    "body, field",
    [
        ({}, "aggregate"),
        ({"aggregate": {}}, "name"),
        ({"aggregate": {"name": ""}}, "field/attribute name"),
        ({"aggregate": {"name": " "}}, "field/attribute name"),
        ({"aggregate": {"name": " a"}}, "field/attribute name"),
        ({"aggregate": {"name": "a" * 256}}, "field/attribute name"),
        ({"aggregate": {"name": "a\nb"}}, "field/attribute name"),
        ({"aggregate": {"name": 1}}, "field/attribute name"),
        ({"aggregate": {"name": None}}, "field/attribute name"),
        ({"aggregate": {"name": "a", "colour": "red"}}, "colour"),
        ({"aggregate": {"name": "a", "availability_zone": ""}}, "field/attribute availability_zone"),
        ({"aggregate": {"name": "a", "availability_zone": "b:c"}}, "field/attribute availability_zone"),
        ({"aggregate": {"name": "a", "availability_zone": " b"}}, "field/attribute availability_zone"),
        ({"aggregate": {"name": "a", "availability_zone": "b" * 256}}, "field/attribute availability_zone"),
        ({"aggregate": {"name": "a", "availability_zone": ["b"]}}, "field/attribute availability_zone"),
    ],
)
def test_create_refuses_invalid_bodies(sqlite_url: str, body: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            status, kind, message = fault(await c.post("/os-aggregates", body, as_="admin"))
            assert (status, kind) == (400, "badRequest")
            assert field in message
            assert await c.db.fetch_value("SELECT COUNT(*) FROM aggregates") == 0

    run(scenario())


@pytest.mark.parametrize(
    "verb, body, field",
    [
        ("add_host", {}, "host"),
        ("add_host", {"host": ""}, "field/attribute host"),
        ("add_host", {"host": "a b"}, "field/attribute host"),
        ("add_host", {"host": "a" * 256}, "field/attribute host"),
        ("add_host", {"host": None}, "field/attribute host"),
        ("add_host", {"host": "host1", "zone": "east"}, "zone"),
        ("add_host", None, "add_host"),
        ("remove_host", {"host": 1}, "field/attribute host"),
        ("set_metadata", {}, "metadata"),
        ("set_metadata", {"metadata": None}, "field/attribute metadata"),
        ("set_metadata", {"metadata": {"": "a"}}, "field/attribute metadata"),
        ("set_metadata", {"metadata": {"a/b": "a"}}, "field/attribute metadata"),
        ("set_metadata", {"metadata": {"k" * 256: "a"}}, "field/attribute metadata"),
        ("set_metadata", {"metadata": {"a": 1}}, "field/attribute metadata.a"),
        ("set_metadata", {"metadata": {"a": "v" * 256}}, "field/attribute metadata.a"),
        ("set_metadata", {"metadata": {"availability_zone": ""}}, "field/attribute metadata.availability_zone"),
        ("set_metadata", {"metadata": {"availability_zone": "a:b"}}, "field/attribute metadata.availability_zone"),
        ("set_metadata", {"metadata": {"cpu_allocation_ratio": "lots"}}, "metadata.cpu_allocation_ratio"),
        ("set_metadata", {"metadata": {"ram_allocation_ratio": "0"}}, "metadata.ram_allocation_ratio"),
        ("set_metadata", {"metadata": {"disk_allocation_ratio": "nan"}}, "metadata.disk_allocation_ratio"),
        ("explode", {}, "explode"),
    ],
)
def test_actions_refuse_invalid_bodies(sqlite_url: str, verb: str, body: Any, field: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            made = await create(c, "a")
            status, _, message = fault(await act(c, made["id"], verb, body))
            assert status == 400
            assert field in message
            assert (await shown(c, made["id"]))["metadata"] == {}

    run(scenario())


def test_no_host_is_in_the_zone_of_internal_services(sqlite_url: str) -> None:
    """As in Nova, an aggregate may have the zone; but hosts in it would be hidden from users."""

    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            internal = await create(c, "internal", "internal")
            assert fault(await act(c, internal["id"], "add_host", {"host": "host1"}))[0] == 409
            other = await create(c, "other", "nova")
            assert (await act(c, other["id"], "add_host", {"host": "host1"})).status == 200
            zone = {"availability_zone": "internal"}
            assert fault(await act(c, other["id"], "set_metadata", {"metadata": zone}))[0] == 400
            assert (await c.put(f"/os-aggregates/{other['id']}", {"aggregate": zone}, as_="admin")).status == 400
            assert (await act(c, other["id"], "remove_host", {"host": "host1"})).status == 200
            assert (await c.put(f"/os-aggregates/{other['id']}", {"aggregate": zone}, as_="admin")).status == 200

    run(scenario())


def test_update_refuses_invalid_bodies(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            made = await create(c, "a")
            path = f"/os-aggregates/{made['id']}"
            bodies: list[dict[str, Any]] = [{}, {"name": " "}, {"name": "b", "availability_zone": " z"}, {"hosts": []}]
            for body in bodies:
                assert (await c.put(path, {"aggregate": body}, as_="admin")).status == 400
            assert (await shown(c, made["id"]))["name"] == "a"

    run(scenario())


def test_v2_root_strips_spaces_of_names(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            made = await create(c, "  a ", " east  ", version="2.1", root="/compute/v2")
            assert (made["name"], made["availability_zone"]) == ("a", "east")
            kept = await act(
                c, made["id"], "set_metadata", {"metadata": {"a": "b"}, "extra": 1}, "2.1", root="/compute/v2"
            )
            assert kept.json()["aggregate"]["metadata"] == {"availability_zone": "east", "a": "b"}

    run(scenario())


def test_aggregate_id_must_be_an_integer(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            for number, status in (("x", 400), ("1.5", 400), ("-1", 404), ("9" * 30, 404), ("7", 404), ("٣", 400)):
                path = f"/os-aggregates/{number}"
                assert (await c.get(path, as_="admin")).status == status
                assert (await c.delete(path, as_="admin")).status == status
                assert (await c.put(path, {"aggregate": {"name": "a"}}, as_="admin")).status == status
                for verb, body in (("add_host", {"host": "h"}), ("set_metadata", {"metadata": {}})):
                    assert (await c.post(f"{path}/action", {verb: body}, as_="admin")).status == status

    run(scenario())


def test_policies(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            made = await create(c, "a")
            path = f"/os-aggregates/{made['id']}"
            for as_ in ("member", "manager", "reader"):
                assert (await c.get("/os-aggregates", as_=as_)).status == 403
                assert (await c.get(path, as_=as_)).status == 403
                assert (await c.post("/os-aggregates", {"aggregate": {"name": "b"}}, as_=as_)).status == 403
                assert (await c.put(path, {"aggregate": {"name": "b"}}, as_=as_)).status == 403
                assert (await c.delete(path, as_=as_)).status == 403
                assert (await act(c, made["id"], "add_host", {"host": "host1"}, as_=as_)).status == 403
                assert (await act(c, made["id"], "remove_host", {"host": "host1"}, as_=as_)).status == 403
                assert (await act(c, made["id"], "set_metadata", {"metadata": {}}, as_=as_)).status == 403
                images = {"cache": [{"id": "70a599e0-31e7-49b7-b260-868f441e862b"}]}
                assert (await c.post(f"{path}/images", images, as_=as_, version="2.81")).status == 403

    run(scenario())


def test_unknown_query_keys_are_refused_from_2_102(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            for version, status in (("2.101", 200), ("2.102", 400)):
                made = await create(c, version)
                options = {"as_": "admin", "version": version}
                path = f"/os-aggregates/{made['id']}"
                assert (await c.get("/os-aggregates?a=b", **options)).status == status
                assert (await c.get(f"{path}?a=b", **options)).status == status
                body: dict[str, Any] = {"set_metadata": {"metadata": {}}}
                assert (await c.post(f"{path}/action?a=b", body, **options)).status == status
                assert (await c.put(f"{path}?a=b", {"aggregate": {"name": f"x{version}"}}, **options)).status == status
                assert (await c.delete(f"{path}?a=b", **options)).status == status

    run(scenario())


@proves("POST /os-aggregates/{aggregate_id}/images")
def test_cache_images_from_2_81(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            made = await create(c, "a")
            path = f"/os-aggregates/{made['id']}/images"

            async def ask(*images: Any, version: str = "2.81", at: str = path) -> Any:
                body = {"cache": [{"id": image} for image in images]}
                return await c.post(at, body, as_="admin", version=version)

            done = await ask(c.image_id)
            assert (done.status, done.body) == (202, b"")
            assert (await ask(c.image_id, version="2.80")).status == 404
            assert (await ask(c.image_id, at="/os-aggregates/99/images")).status == 404
            assert (await ask(c.image_id, at="/os-aggregates/x/images")).status == 400
            unknown = "70a599e0-31e7-49b7-b260-868f441e862b"
            for images, words in (
                ([c.image_id, c.image_id], "twice"),
                ([c.image_id, unknown], f"Image {unknown} could not be found"),
                (["cirros"], "cache[0].id"),
                ([None], "cache[0].id"),
                ([], "cache"),
            ):
                status, _, message = fault(await ask(*images))
                assert status == 400
                assert words in message

    run(scenario())
