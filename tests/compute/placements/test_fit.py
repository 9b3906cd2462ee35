"""Fit: the reported number of servers can really be booted."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.compute.placements.support import assign
from tests.support import run
from tests.support.cloud import OTHER, fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

UNLIMITED = {"quota__instances": -1, "quota__cores": -1, "quota__ram": -1}


async def fit(c: FullCloud, query: str, *, as_: str = "admin") -> dict[str, Any]:
    answer = await c.get(f"/kilonova-fit?{query}", as_=as_)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()["fit"]
    return found


@proves("GET /kilonova-fit")
def test_reported_number_of_servers_fits(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, zones=("az1", "az2"), **UNLIMITED) as c:
            found = await fit(c, "flavor=m1.small")
            assert (found["servers"], found["hosts_with_room"]) == (15, 3)
            assert found["zones"] == {"az1": 10, "az2": 5}
            assert found["runs_out"] == {"DISK_GB": 3}
            assert found["hosts"][0]["free"]["DISK_GB"] == {"free": 100, "of": 100}
            assert (await fit(c, "flavor=2&zone=az1"))["servers"] == 10
            made = [await c.boot(flavorRef="2") for _ in range(16)]
            settled = await asyncio.gather(*(c.wait_until_settled(server["id"]) for server in made))
            assert sorted(server["status"] for server in settled) == ["ACTIVE"] * 15 + ["ERROR"]
            found = await fit(c, f"flavor=2&image={c.image_id}")
            assert (found["servers"], found["hosts"]) == (0, [])
            assert found["message"] == "No valid host was found: 3 hosts: 3 lack 20 GB disk"

    run(scenario())


def test_hosts_assigned_to_projects_are_not_counted(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            await assign(c.db, c.hosts.names[:1], "filter_tenant_id", OTHER)
            assert (await fit(c, "flavor=2&limit=1"))["servers"] == 10
            assert len((await fit(c, "flavor=2&limit=1"))["hosts"]) == 1

    run(scenario())


@proves("GET /kilonova-fit")
def test_policies_and_invalid_queries(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            for role in ("member", "manager", "project-admin"):
                assert (await c.get("/kilonova-fit?flavor=1", as_=role)).status == 403
            assert (await fit(c, "flavor=1", as_="system"))["servers"] > 0
            for query, message in (
                ("", "Invalid input for query parameters flavor: it is required."),
                ("flavor=none", "Flavor none could not be found."),
                ("flavor=1&zone=none", "The requested availability zone is not available"),
                ("flavor=1&image=none", "Can not find requested image none."),
            ):
                assert fault(await c.get(f"/kilonova-fit?{query}", as_="admin")) == (400, "badRequest", message)

    run(scenario())
