"""Availability zones: lists, details, and the creation of zones at start."""

from __future__ import annotations

from typing import Any

from kilonova.compute.zones import model
from tests.support import run
from tests.support.cloud import Cloud, cloud
from tests.support.route_coverage import proves


async def zones(c: Cloud, path: str = "", as_: str = "member", **options: Any) -> dict[str, dict[str, Any]]:
    answer = await c.get(f"/os-availability-zone{path}", as_=as_, **options)
    assert answer.status == 200, answer.body
    return {zone["zoneName"]: zone for zone in answer.json()["availabilityZoneInfo"]}


@proves("GET /os-availability-zone", "GET /os-availability-zone/detail")
def test_hosts_without_zone_are_in_the_default_zone(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2, process_host="ctl") as c:
            plain = {"zoneName": "nova", "zoneState": {"available": True}, "hosts": None}
            assert await zones(c) == {"nova": plain}
            detail = await zones(c, "/detail", as_="admin")
            assert list(detail) == ["internal", "nova"]
            assert set(detail["internal"]["hosts"]["ctl"]) == {"nova-conductor", "nova-scheduler"}
            service = detail["nova"]["hosts"]["host1"]["nova-compute"]
            assert (service["active"], service["available"]) == (True, True)
            assert set(service) == {"active", "available", "updated_at"}
            assert (await c.get("/os-availability-zone/detail")).status == 403

    run(scenario())


def test_configured_default_zone(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1, scheduler__default_zone="here") as c:
            assert list(await zones(c)) == ["here"]

    run(scenario())


def test_create_zone(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=4) as c:
            async with c.db.transaction() as tx:
                await model.create_zone(tx, "east", ["host1", "host2"])
                await model.create_zone(tx, "west", ["host3"])
                await model.create_zone(tx, "empty", [])
            assert list(await zones(c)) == ["east", "nova", "west"]
            assert await model.zone_names(c.db) == {"east", "nova", "west"}
            asked = ["host1", "host3", "host4", "host9"]
            expected = {"host1": "east", "host3": "west", "host4": "nova", "host9": "nova"}
            assert await model.zone_of_hosts(c.db, asked) == expected
            assert await model.zone_of_hosts(c.db, ["host4"], "") == {"host4": ""}
            assert await model.zone_of_hosts(c.db, []) == {}
            detail = await zones(c, "/detail", as_="admin")
            assert set(detail["east"]["hosts"]) == {"host1", "host2"}
            # A second start changes no zone.
            async with c.db.transaction() as tx:
                await model.create_zone(tx, "east", ["host1", "host2", "host3"])
            assert (await model.zone_of_hosts(c.db, ["host3"])) == {"host3": "west"}
            assert await c.db.fetch_value("SELECT COUNT(*) FROM aggregates") == 3

    run(scenario())


def test_schedulers_are_notified_of_a_new_zone(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            before = await c.db.fetch_value("SELECT MAX(facts) FROM resource_providers")
            async with c.db.transaction() as tx:
                await model.create_zone(tx, "east", ["host1"])
            assert await c.db.fetch_value("SELECT MAX(facts) FROM resource_providers") > before

    run(scenario())


def test_zone_of_disabled_hosts_is_not_available(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            async with c.db.transaction() as tx:
                await model.create_zone(tx, "east", ["host1"])
                await tx.execute("UPDATE services SET disabled = TRUE WHERE host = 'host1'")
            found = await zones(c)
            # Available zones come first.
            assert list(found) == ["nova", "east"]
            assert found["east"]["zoneState"] == {"available": False}
            assert (await zones(c, "/detail", as_="admin"))["east"]["hosts"] is None

    run(scenario())


def test_detail_shows_disabled_and_down_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=4) as c:
            async with c.db.transaction() as tx:
                await model.create_zone(tx, "east", ["host1", "host2", "host3", "host4"])
                await tx.execute("UPDATE services SET disabled = TRUE WHERE host = 'host2'")
                await tx.execute("UPDATE services SET forced_down = TRUE WHERE host = 'host3'")
                await tx.execute("UPDATE services SET last_seen_at = 1767323045.5 WHERE host = 'host4'")
            hosts = (await zones(c, "/detail", as_="admin"))["east"]["hosts"]
            flags = {host: programs["nova-compute"] for host, programs in hosts.items()}
            assert {host: (each["active"], each["available"]) for host, each in flags.items()} == {
                "host1": (True, True),
                "host2": (False, True),
                "host3": (True, False),
                "host4": (True, False),
            }
            assert flags["host4"]["updated_at"] == "2026-01-02T03:04:05.500000"
            # A zone of hosts that are down stays available.
            assert (await zones(c))["east"] == {"zoneName": "east", "zoneState": {"available": True}, "hosts": None}

    run(scenario())


def test_zones_are_aggregates_in_placement(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=3) as c:
            async with c.db.transaction() as tx:
                await model.create_zone(tx, "east", ["host1", "host2"])
                await model.create_zone(tx, "east", ["host1", "host2", "host3"])
            rows = await c.db.fetch(
                """
                SELECT h.host FROM aggregates a JOIN provider_aggregates pa ON pa.aggregate_uuid = a.uuid
                JOIN resource_providers p ON p.id = pa.provider_id JOIN hypervisors h ON h.uuid = p.uuid
                WHERE a.name = 'east' ORDER BY h.host
                """
            )
            assert [row["host"] for row in rows] == ["host1", "host2", "host3"]

    run(scenario())


def test_zone_beside_an_aggregate_with_its_name(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            await c.post("/os-aggregates", {"aggregate": {"name": "east"}}, as_="admin")
            for _ in range(2):
                async with c.db.transaction() as tx:
                    await model.create_zone(tx, "east", ["host1"])
            assert list(await zones(c)) == ["east"]
            found = (await c.get("/os-aggregates", as_="admin")).json()["aggregates"]
            assert [(each["availability_zone"], each["hosts"]) for each in found] == [(None, []), ("east", ["host1"])]

    run(scenario())


def test_unknown_query_keys_are_refused_from_2_102(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            assert (await c.get("/os-availability-zone?colour=red", version="2.101")).status == 200
            assert (await c.get("/os-availability-zone?colour=red", version="2.102")).status == 400

    run(scenario())
