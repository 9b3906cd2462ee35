"""Hosts before 2.43: list, resources, enable and disable."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.zones import model as zones
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, FLAVOR, Cloud, cloud, fault, put_server
from tests.support.route_coverage import proves

LAST = "2.42"
ACTIONS = ("startup", "shutdown", "reboot")


async def hosts(c: Cloud, query: str = "") -> list[tuple[str, str, str]]:
    answer = await c.get(f"/os-hosts{query}", as_="admin", version=LAST)
    assert answer.status == 200, answer.body
    return [(each["host_name"], each["service"], each["zone"]) for each in answer.json()["hosts"]]


@proves("GET /os-hosts")
def test_list_by_service_and_zone(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2, process_host="ctl") as c:
            async with c.db.transaction() as tx:
                await zones.create_zone(tx, "east", ["host2"])
            east, nova = ("host2", "compute", "east"), ("host1", "compute", "nova")
            internal = [("ctl", name, "internal") for name in ("conductor", "scheduler")]
            assert sorted(await hosts(c)) == sorted([east, nova, *internal])
            assert sorted(await hosts(c, "?zone=")) == sorted([east, nova, *internal])
            assert await hosts(c, "?zone=east") == [east]
            assert await hosts(c, "?zone=nowhere") == []
            assert sorted(await hosts(c, "?service=compute")) == [nova, east]
            assert (await c.get("/os-hosts", version=LAST)).status == 403

    run(scenario())


@proves("GET /os-hosts/{host}")
def test_resources_and_usage_by_project(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            flavor = FLAVOR.replace('"disk":1', '"disk":10').replace('"ephemeral":0', '"ephemeral":2')
            await put_server(c.db, "one", host="host1", vcpus=2, ram=512, flavor=flavor)
            await put_server(c.db, "two", host="host1", vcpus=1, ram=256, flavor=flavor, created_at=2.0)
            await put_server(c.db, "three", host="host1", project_id=ADMIN, vcpus=4, ram=64, created_at=3.0)
            await put_server(c.db, "gone", host="host1", deleted=True)
            await put_server(c.db, "away", host="host2")
            shown = (await c.get("/os-hosts/host1", as_="admin", version=LAST)).json()["host"]
            resources = [each["resource"] for each in shown]
            assert {each.pop("host") for each in resources} == {"host1"}
            names = [each.pop("project") for each in resources]
            assert names == ["(total)", "(used_now)", "(used_max)", DEMO, ADMIN]
            total, now, most, demo, admin = resources
            summary = (await c.get("/os-hypervisors/detail", as_="admin", version=LAST)).json()["hypervisors"][0]
            assert total == {name: summary[key] for name, key in HYPERVISOR.items()}
            assert now == {name: summary[f"{key}_used"] for name, key in HYPERVISOR.items()}
            assert demo == {"cpu": 3, "memory_mb": 768, "disk_gb": 24}
            assert admin == {"cpu": 4, "memory_mb": 64, "disk_gb": 1}
            assert most == {"cpu": 7, "memory_mb": 832, "disk_gb": 25}
            missing = await c.get("/os-hosts/nowhere", as_="admin", version=LAST)
            assert fault(missing) == (404, "itemNotFound", "Compute host nowhere could not be found.")
            assert (await c.get("/os-hosts/host1", version=LAST)).status == 403

    run(scenario())


HYPERVISOR = {"cpu": "vcpus", "memory_mb": "memory_mb", "disk_gb": "local_gb"}


@proves("PUT /os-hosts/{host}")
def test_enable_and_disable(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:

            async def put(body: Any, host: str = "host1") -> Any:
                return await c.put(f"/os-hosts/{host}", body, as_="admin", version=LAST)

            async def status() -> str:
                (row,) = (await c.get("/os-services?host=host1", as_="admin")).json()["services"]
                found: str = row["status"]
                return found

            assert (await put({"status": "disable"})).json() == {"host": "host1", "status": "disabled"}
            assert await status() == "disabled"
            off = {"host": "host1", "maintenance_mode": "off_maintenance"}
            assert (await put({"maintenance_mode": "disable"})).json() == off
            # Refused before anything is changed.
            assert (await put({"status": "enable", "maintenance_mode": "enable"})).status == 501
            assert await status() == "disabled"
            both = {"status": "enable", "maintenance_mode": "disable"}
            assert (await put(both)).json() == {**off, "status": "enabled"}
            assert await status() == "enabled"
            for body in ({}, {"status": "invalid"}, {"maintenance_mode": "x"}, {"status": "enable", "x": 1}):
                assert (await put(body)).status == 400
            assert (await put(both, "nowhere")).status == 404
            assert (await c.put("/os-hosts/host1", both, version=LAST)).status == 403

    run(scenario())


@pytest.mark.parametrize("action", ACTIONS)
def test_power_actions_are_refused(sqlite_url: str, action: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1, process_host="ctl") as c:
            for host, expected in (("host1", 501), ("ctl", 404), ("nowhere", 404)):
                answer = await c.get(f"/os-hosts/{host}/{action}", as_="admin", version=LAST)
                assert (host, answer.status) == (host, expected)
            assert (await c.get(f"/os-hosts/host1/{action}", version=LAST)).status == 403

    run(scenario())


def test_routes_end_with_2_43(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            for path in ("", "/host1", *(f"/host1/{action}" for action in ACTIONS)):
                assert (await c.get(f"/os-hosts{path}", as_="admin", version="2.43")).status == 404
            assert (await c.put("/os-hosts/host1", {"status": "enable"}, as_="admin", version="2.43")).status == 404

    run(scenario())
