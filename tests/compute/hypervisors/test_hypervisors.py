"""Hypervisors: lists, pages, servers, amounts and statistics."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kilonova import clock
from kilonova.compute.hypervisors import uptime
from kilonova.placement.claims import Consumer, claim
from kilonova.store import Transaction
from tests.support import run
from tests.support.cloud import Cloud, cloud, fault, put_server
from tests.support.route_coverage import proves

SUMMARY = {"id", "hypervisor_hostname", "state", "status"}
DETAIL = SUMMARY | {"service", "host_ip", "hypervisor_type", "hypervisor_version"}
AMOUNTS = {
    *("cpu_info", "vcpus", "vcpus_used", "memory_mb", "memory_mb_used", "free_ram_mb", "local_gb", "local_gb_used"),
    *("free_disk_gb", "disk_available_least", "running_vms", "current_workload"),
}


async def listed(c: Cloud, path: str = "", version: str = "latest") -> list[dict[str, Any]]:
    answer = await c.get(f"/os-hypervisors{path}", as_="system", version=version)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["hypervisors"]
    return found


async def allocate(c: Cloud, host: str, consumer: str, **amounts: int) -> None:
    uuid = await c.db.fetch_value("SELECT uuid FROM hypervisors WHERE host = $1", host)
    async with c.db.transaction() as tx:
        assert await claim(tx, Consumer(consumer, "p", "u"), {uuid: amounts})


async def add_child_provider(tx: Transaction, host: str, uuid: str, inventory: dict[str, int]) -> int:
    """A child provider of the host's provider."""
    root = await tx.fetch_value(
        "SELECT p.id FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = $1", host
    )
    return await insert_provider(tx, uuid, inventory, root)


async def add_sharing_provider(tx: Transaction, uuid: str, inventory: dict[str, int], hosts: list[str]) -> None:
    """A sharing provider for these hosts."""
    made = await insert_provider(tx, uuid, inventory, None)
    await tx.execute("INSERT INTO traits (name, created_at, updated_at) VALUES ('MISC_SHARES_VIA_AGGREGATE', 1, 1)")
    await tx.execute("INSERT INTO provider_traits (provider_id, trait) VALUES ($1, 'MISC_SHARES_VIA_AGGREGATE')", made)
    members = await tx.fetch(
        "SELECT p.id FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = ANY($1)", hosts
    )
    await tx.execute_many(
        "INSERT INTO provider_aggregates (provider_id, aggregate_uuid) VALUES ($1, 'shared')",
        [(made,), *((row["id"],) for row in members)],
    )


async def insert_provider(tx: Transaction, uuid: str, inventory: dict[str, int], parent: int | None) -> int:
    made: int = await tx.fetch_value(
        """
        INSERT INTO resource_providers (uuid, name, generation, parent_id, change, facts, created_at, updated_at)
        VALUES ($1, $1, 0, $2, 1, 1, 1, 1) RETURNING id
        """,
        uuid,
        parent,
    )
    await tx.execute("UPDATE resource_providers SET root_id = COALESCE(parent_id, id) WHERE id = $1", made)
    await tx.execute_many(
        """
        INSERT INTO inventories (provider_id, resource_class, total, reserved, min_unit, max_unit, step_size,
            allocation_ratio) VALUES ($1, $2, $3, 0, 1, $3, 1, 1.0)
        """,
        [(made, resource_class, total) for resource_class, total in inventory.items()],
    )
    return made


@proves("GET /os-hypervisors", "GET /os-hypervisors/detail", "GET /os-hypervisors/{hypervisor_id}")
def test_show_by_uuid(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            first, second = await listed(c)
            assert first["hypervisor_hostname"] == "host1.example"
            assert (first["state"], first["status"]) == ("up", "enabled")
            detail = (await listed(c, "/detail"))[1]
            assert detail.items() >= second.items()
            assert detail["service"] == {"id": detail["service"]["id"], "host": "host2", "disabled_reason": None}
            assert (detail["hypervisor_type"], detail["hypervisor_version"]) == ("sim", 1000)
            shown = await c.get(f"/os-hypervisors/{second['id']}", as_="admin", version="latest")
            assert shown.json() == {"hypervisor": detail}

    run(scenario())


def test_state_and_status_come_from_the_service(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET disabled = TRUE, disabled_reason = 'dust', forced_down = TRUE")
            (shown,) = await listed(c, "/detail")
            assert (shown["state"], shown["status"]) == ("down", "disabled")
            assert shown["service"]["disabled_reason"] == "dust"

    run(scenario())


@pytest.mark.parametrize(
    "version, detail, info",
    [
        ("2.27", DETAIL | AMOUNTS, str),
        ("2.28", DETAIL | AMOUNTS, dict),
        ("2.87", DETAIL | AMOUNTS, dict),
        ("2.88", DETAIL | {"uptime"}, type(None)),
    ],
)
def test_fields_by_version(database_url: str, version: str, detail: set[str], info: type) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            (shown,) = await listed(c, "/detail", version)
            assert set(shown) == detail
            assert isinstance(shown.get("cpu_info"), info)
            one = await c.get(f"/os-hypervisors/{shown['id']}", as_="admin", version=version)
            assert set(one.json()["hypervisor"]) == detail
            (short,) = await listed(c, "", version)
            assert set(short) == SUMMARY

    run(scenario())


@proves("GET /os-hypervisors/statistics")
def test_amounts_come_from_placement_and_servers(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            await allocate(c, "host1", "c1", VCPU=2, MEMORY_MB=1024, DISK_GB=10)
            await allocate(c, "host1", "c2", VCPU=1, MEMORY_MB=512)
            await put_server(c.db, "s1", host="host1")
            await put_server(c.db, "s2", host="host1", deleted=True)
            one, two = await listed(c, "/detail", "2.87")
            amounts = {name: one[name] for name in AMOUNTS - {"cpu_info"}}
            assert amounts == {
                "vcpus": 8,
                "vcpus_used": 3,
                "memory_mb": 16384,
                "memory_mb_used": 512 + 1536,
                "free_ram_mb": 16384 - 2048,
                "local_gb": 100,
                "local_gb_used": 10,
                "free_disk_gb": 90,
                "disk_available_least": 90,
                "running_vms": 1,
                "current_workload": 0,
            }
            assert (two["vcpus_used"], two["memory_mb_used"], two["running_vms"]) == (0, 512, 0)
            totals = (await c.get("/os-hypervisors/statistics", as_="admin", version="2.87")).json()
            assert totals["hypervisor_statistics"] == {
                "count": 2,
                **{name: one[name] + two[name] for name in AMOUNTS - {"cpu_info"}},
            }

    run(scenario())


def test_integer_ids_below_2_53(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            one, two = await listed(c, "/detail", "2.52")
            assert (one["id"], two["id"]) == (1, 2)
            assert isinstance(two["service"]["id"], int)
            shown = await c.get("/os-hypervisors/2", as_="admin", version="2.52")
            assert shown.json()["hypervisor"]["hypervisor_hostname"] == "host2.example"
            for path in ("9", "x", "9" * 30, "statistic"):
                assert (await c.get(f"/os-hypervisors/{path}", as_="admin", version="2.52")).status == 404
            assert (await c.get("/os-hypervisors/2", as_="admin", version="2.53")).status == 400
            unknown = "/os-hypervisors/00000000-0000-0000-0000-000000000000"
            assert fault(await c.get(unknown, as_="admin", version="2.53"))[:2] == (404, "itemNotFound")

    run(scenario())


@pytest.mark.parametrize("version", ["2.33", "2.52", "2.53", "latest"])
def test_pages(database_url: str, version: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=5) as c:
            whole = await listed(c, "/detail", version)
            path, walked = "/os-hypervisors/detail?limit=2", []
            while path:
                body = (await c.get(path, as_="system", version=version)).json()
                walked += body["hypervisors"]
                links = body.get("hypervisors_links", [])
                path = links[0]["href"].partition("/v2.1")[2] if links else ""
            assert walked == whole
            missing = "00000000-0000-0000-0000-000000000000" if version not in ("2.33", "2.52") else "99"
            for marker in (missing, "x"):
                assert (await c.get(f"/os-hypervisors?marker={marker}", as_="admin", version=version)).status == 400

    run(scenario())


def test_no_pages_below_2_33(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=4, api__max_limit=2) as c:
            assert len(await listed(c, "?limit=1", "2.32")) == 4
            assert len(await listed(c, "", "2.33")) == 2

    run(scenario())


def test_with_servers(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            server_id = "5e1f0c7a-0000-4000-8000-000000000001"
            shown_server = {"uuid": server_id, "name": "instance-5e1f0c7a"}
            await put_server(c.db, server_id, host="host1", name="web")
            await put_server(c.db, "gone", host="host2", deleted=True)
            for path in ("", "/detail"):
                one, two = await listed(c, f"{path}?with_servers=true", "2.75")
                assert one["servers"] == [shown_server]
                assert two["servers"] == []
                one, two = await listed(c, f"{path}?with_servers=1", "2.74")
                assert one["servers"] == [shown_server]
                assert "servers" not in two
                assert "servers" not in (await listed(c, f"{path}?with_servers=false"))[0]
                assert "servers" not in (await listed(c, path))[0]
            shown = await c.get(f"/os-hypervisors/{one['id']}?with_servers=True", as_="admin", version="2.53")
            assert shown.json()["hypervisor"]["servers"] == [shown_server]
            server = (await c.get(f"/servers/{server_id}", as_="admin")).json()["server"]
            assert server["OS-EXT-SRV-ATTR:instance_name"] == shown_server["name"]
            c.services.config.compute.instance_name_template = "kilonova-%(uuid)s"
            assert (await listed(c, "?with_servers=true", "2.75"))[0]["servers"][0]["name"] == f"kilonova-{server_id}"
            server = (await c.get(f"/servers/{server_id}", as_="admin")).json()["server"]
            assert server["OS-EXT-SRV-ATTR:instance_name"] == f"kilonova-{server_id}"
            assert (await c.get("/os-hypervisors?with_servers=perhaps", as_="admin", version="2.53")).status == 400

    run(scenario())


def test_hostname_pattern_from_2_53(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=12) as c:
            found = await listed(c, "?hypervisor_hostname_pattern=HOST1", "2.53")
            assert [each["hypervisor_hostname"] for each in found] == [
                *("host1.example", "host10.example", "host11.example", "host12.example")
            ]
            pattern = "/os-hypervisors?hypervisor_hostname_pattern="
            assert (await c.get(f"{pattern}nope", as_="admin", version="2.53")).status == 404
            # An underscore is not a wildcard.
            assert (await c.get(f"{pattern}host_", as_="admin", version="2.53")).status == 404
            assert (await c.get(f"{pattern}h%25", as_="admin", version="2.53")).status == 400
            refused = await c.get(f"{pattern}host&limit=1", as_="admin", version="2.53")
            assert "Paging" in fault(refused)[2]

    run(scenario())


@proves("GET /os-hypervisors/{hypervisor_id}/search", "GET /os-hypervisors/{hypervisor_id}/servers")
def test_search_and_servers_below_2_53(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            await put_server(c.db, "s1", host="host2")
            (found,) = await listed(c, "/host2/search", "2.52")
            assert found == {"id": 2, "hypervisor_hostname": "host2.example", "state": "up", "status": "enabled"}
            one, two = await listed(c, "/example/servers", "2.52")
            assert "servers" not in one
            assert two["servers"] == [{"uuid": "s1", "name": "instance-s1"}]
            for verb in ("search", "servers"):
                assert (await c.get(f"/os-hypervisors/nope/{verb}", as_="admin", version="2.52")).status == 404
                assert (await c.get(f"/os-hypervisors/host/{verb}", as_="admin", version="2.53")).status == 404

    run(scenario())


def test_removed_routes(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            (found,) = await listed(c)
            statistics = "/os-hypervisors/statistics"
            assert (await c.get(statistics, as_="admin", version="2.88")).status == 404
            uptime = f"/os-hypervisors/{found['id']}/uptime"
            assert (await c.get(uptime, as_="admin", version="2.88")).status == 404

    run(scenario())


@proves("GET /os-hypervisors/{hypervisor_id}/uptime")
def test_uptime_of_hosts_that_report_it(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)

    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:

            async def boot(ago: float | None) -> None:
                moment = None if ago is None else now - ago
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE hypervisors SET booted_at = $1", moment)

            async def asked(version: str = "2.87") -> Any:
                (found,) = await listed(c, "", version)
                return await c.get(f"/os-hypervisors/{found['id']}/uptime", as_="admin", version=version)

            await boot(2 * 86400 + 3 * 3600 + 4 * 60 + 5)
            for version in ("2.1", "2.53", "2.87"):
                (found,) = await listed(c, "", version)
                shown = (await asked(version)).json()["hypervisor"]
                words = shown.pop("uptime")
                assert shown == found
                # The format that the stock client parses.
                parts = re.fullmatch(r"\s*(.+)\sup\s+(.+),\s+(.+)\susers?,\s+load average:\s(.+)", words)
                assert parts is not None
                assert parts[2] == "2 days,  3:04"
            (detail,) = await listed(c, "/detail", "2.88")
            assert detail["uptime"] == words
            one = await c.get(f"/os-hypervisors/{detail['id']}", as_="admin", version="2.88")
            assert one.json()["hypervisor"]["uptime"] == detail["uptime"]
            # No uptime of hosts that are down or do not report it.
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET forced_down = TRUE")
            assert fault(await asked())[:2] == (400, "badRequest")
            assert (await listed(c, "/detail", "2.88"))[0]["uptime"] is None
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET forced_down = FALSE")
            await boot(None)
            assert fault(await asked())[:2] == (501, "notImplemented")
            assert (await listed(c, "/detail", "2.88"))[0]["uptime"] is None
            for path, version, status in (("9", "2.52", 404), ("x", "2.52", 404), ("9", "2.53", 400)):
                answer = await c.get(f"/os-hypervisors/{path}/uptime", as_="admin", version=version)
                assert answer.status == status

    run(scenario())


@pytest.mark.parametrize(
    "seconds, words",
    [
        (0, "0 min"),
        (59 * 60 + 59, "59 min"),
        (3600, " 1:00"),
        (86399, "23:59"),
        (86400, "1 day, 0 min"),
        (93 * 86400 + 18 * 3600 + 25 * 60, "93 days, 18:25"),
        (-5, "0 min"),
    ],
)
def test_uptime_format(seconds: int, words: str) -> None:
    now = 1.7e9
    expected = f" 22:13:20 up {words},  0 users,  load average: 0.00, 0.00, 0.00"
    assert uptime.format_uptime(now - seconds, now) == expected


def test_statistics_leave_out_disabled_hypervisors(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=3) as c:
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET disabled = TRUE WHERE host = 'host1'")
            totals = (await c.get("/os-hypervisors/statistics", as_="admin")).json()["hypervisor_statistics"]
            assert (totals["count"], totals["vcpus"]) == (2, 16)

    run(scenario())


def test_amounts_of_nested_and_sharing_providers(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            await allocate(c, "host1", "c1", VCPU=2)
            async with c.db.transaction() as tx:
                await add_child_provider(tx, "host1", "cell", {"VCPU": 4, "DISK_GB": 50})
                await tx.execute("DELETE FROM inventories WHERE resource_class = 'DISK_GB' AND total = 100")
                await add_sharing_provider(tx, "pool", {"DISK_GB": 5000}, ["host1", "host2"])
                assert await claim(tx, Consumer("c2", "p", "u"), {"cell": {"VCPU": 1, "DISK_GB": 5}})
                assert await claim(tx, Consumer("c3", "p", "u"), {"pool": {"DISK_GB": 70}})
            one, two = await listed(c, "/detail", "2.87")
            assert (one["vcpus"], one["vcpus_used"], one["local_gb"], one["local_gb_used"]) == (12, 3, 50, 5)
            assert (two["vcpus"], two["vcpus_used"], two["local_gb"], two["free_disk_gb"]) == (8, 0, 5000, 4930)
            totals = (await c.get("/os-hypervisors/statistics", as_="admin")).json()["hypervisor_statistics"]
            assert (totals["vcpus"], totals["vcpus_used"], totals["local_gb"]) == (20, 3, 50)

    run(scenario())


def test_policies_and_unknown_query_keys(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            (found,) = await listed(c)
            for path in ("", "/detail", f"/{found['id']}", "/statistics", "/host/search", "/host/servers"):
                version = "2.53" if found["id"] in path else "2.52"
                assert (await c.get(f"/os-hypervisors{path}", version=version)).status == 403
                assert (await c.get(f"/os-hypervisors{path}", version=version, as_="system")).status == 200
            for path in ("", "/detail"):
                assert (await c.get(f"/os-hypervisors{path}?a=b", as_="admin", version="2.52")).status == 200
                assert (await c.get(f"/os-hypervisors{path}?a=b", as_="admin", version="2.53")).status == 400

    run(scenario())
