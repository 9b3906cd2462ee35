"""Usage of projects: hours of servers in a period, policies, and pages."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova import clock
from tests.support import run
from tests.support.cloud import DEMO, OTHER, Cloud, cloud, fault, put_server
from tests.support.route_coverage import proves

LIST, SHOW = "GET /os-simple-tenant-usage", "GET /os-simple-tenant-usage/{project_id}"
FLAVOR = {"name": "m1.x", "vcpus": 2, "ram": 1024, "disk": 10, "ephemeral": 5, "swap": 0, "extra_specs": {}}
START = clock.parse("2026-01-01T00:00:00")
HOUR_SECONDS = 3600.0
DAY = "start=2026-01-01T00:00:00&end=2026-01-02T00:00:00"


def server_id(number: int) -> str:
    return f"{number:08d}-0000-4000-8000-000000000000"


async def put(c: Cloud, number: int, began: float, ended: float | None = None, **values: Any) -> None:
    """Insert a server that ran between these hours of the day."""
    await put_server(
        c.db,
        server_id(number),
        flavor=orjson.dumps(FLAVOR).decode(),
        launched_at=START + began * HOUR_SECONDS,
        terminated_at=None if ended is None else START + ended * HOUR_SECONDS,
        deleted=ended is not None,
        **values,
    )


async def usage(c: Cloud, path: str = "", **options: Any) -> Any:
    options = {"as_": "admin", "version": "2.96", **options}
    answer = await c.get(f"/os-simple-tenant-usage{path}", **options)
    assert answer.status == 200, answer.body
    return answer.json()


@proves(LIST, SHOW)
def test_hours_within_the_period(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put(c, 1, -5, 3, name="gone", vm_state="deleted")
            await put(c, 2, 22)
            await put(c, 3, -9, -8)
            await put(c, 4, 25)
            await put(c, 5, 1, 2, project_id=OTHER)
            await put_server(c.db, server_id(6), vm_state="error")
            listed = (await usage(c, f"?{DAY}"))["tenant_usages"]
            assert listed == [
                {
                    "tenant_id": project_id,
                    "total_hours": hours,
                    "total_vcpus_usage": hours * 2,
                    "total_memory_mb_usage": hours * 1024,
                    "total_local_gb_usage": hours * 15,
                    "start": "2026-01-01T00:00:00.000000",
                    "stop": "2026-01-02T00:00:00.000000",
                }
                for project_id, hours in ((OTHER, 1.0), (DEMO, 5.0))
            ]
            detailed = (await usage(c, f"?{DAY}&detailed=1"))["tenant_usages"]
            shown = (await usage(c, f"/{DEMO}?{DAY}", as_="reader"))["tenant_usage"]
            assert detailed[1] == shown
            gone, alive = shown["server_usages"]
            assert gone == {
                "instance_id": server_id(1),
                "name": "gone",
                "tenant_id": DEMO,
                "flavor": "m1.x",
                "hours": 3.0,
                "vcpus": 2,
                "memory_mb": 1024,
                "local_gb": 15,
                "started_at": "2025-12-31T19:00:00.000000",
                "ended_at": "2026-01-01T03:00:00.000000",
                "uptime": 8 * 3600,
                "state": "terminated",
            }
            assert (alive["hours"], alive["ended_at"], alive["state"]) == (2.0, None, "active")
            assert await usage(c, f"/{OTHER}?start=2020-01-01&end=2020-01-02") == {"tenant_usage": {}}
            (later,) = (await usage(c, "?start=2026-01-02&end=2999-01-01"))["tenant_usages"]
            assert later["total_hours"] == pytest.approx((clock.now() - START) / HOUR_SECONDS * 2 - 24 - 25, abs=0.1)

    run(scenario())


def test_pages(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for number in range(5):
                await put(c, number, 1, 2, project_id=DEMO if number % 2 else OTHER)
            for start, name in ((f"?{DAY}&limit=2", "tenant_usages"), (f"/{DEMO}?{DAY}&limit=1", "tenant_usage")):
                path, hours = start, 0.0
                while path:
                    body = await usage(c, path)
                    found = body[name] if isinstance(body[name], list) else [body[name]] if body[name] else []
                    hours += sum(one["total_hours"] for one in found)
                    links = body.get(f"{name}_links", [])
                    path = links[0]["href"].split("/os-simple-tenant-usage")[1] if links else ""
                assert hours == (5.0 if name == "tenant_usages" else 2.0)
            old = await usage(c, f"?{DAY}&limit=1", version="2.39")
            assert sum(one["total_hours"] for one in old["tenant_usages"]) == 5.0
            assert list(old) == ["tenant_usages"]
            for path in (f"?marker={server_id(99)}", f"/{DEMO}?marker={server_id(0)}"):
                answer = await c.get(f"/os-simple-tenant-usage{path}", as_="admin", version="2.40")
                assert fault(answer)[0] == 400

    run(scenario())


@pytest.mark.parametrize("query", ["start=x", "end=2026-13-01", "start=2026-01-02&end=2026-01-01", "limit=-1"])
def test_invalid_queries_are_refused(database_url: str, query: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for path in ("", f"/{DEMO}"):
                answer = await c.get(f"/os-simple-tenant-usage{path}?{query}", as_="admin", version="2.96")
                assert fault(answer)[0] == 400, path
            answer = await c.get("/os-simple-tenant-usage?more=1", as_="admin", version="2.75")
            assert fault(answer)[0] == 400
            assert (await c.get("/os-simple-tenant-usage?more=1", as_="admin", version="2.74")).status == 200

    run(scenario())


def test_detailed_is_a_key_of_lists_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put(c, 1, 0, 1)
            # The stock client sends True.
            for value, detailed in (
                *(("1", True), ("True", True), ("0&detailed=1", True)),
                *(("0", False), ("", False), ("2", False), ("nonsense", False)),
            ):
                (shown,) = (await usage(c, f"?{DAY}&detailed={value}"))["tenant_usages"]
                assert ("server_usages" in shown) is detailed, value
            path = f"/os-simple-tenant-usage/{DEMO}?detailed=1"
            assert (await c.get(path, version="2.74")).status == 200
            status, _, message = fault(await c.get(path, version="2.75"))
            assert (status, "detailed" in message) == (400, True)

    run(scenario())


def test_policies(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            for who, lists, shows in (
                ("admin", 200, 200),
                ("project-admin", 200, 200),
                ("manager", 403, 200),
                ("reader", 403, 200),
                ("other", 403, 403),
                (None, 401, 401),
            ):
                assert (await c.get("/os-simple-tenant-usage", as_=who)).status == lists, who
                assert (await c.get(f"/os-simple-tenant-usage/{DEMO}", as_=who)).status == shows, who

    run(scenario())
