"""`X-Kilonova-Dry-Run: 1` returns the plan, has the same errors as the real request, and changes nothing."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from kilonova.http.client import ClientResponse
from kilonova.store import Database, Row
from kilonova.store.schema import metadata
from tests.compute.placements.support import HUGE, assign
from tests.compute.servers.support import make_flavor
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

DRY = {"X-Kilonova-Dry-Run": "1"}
UNLIMITED = {"quota__instances": -1, "quota__cores": -1, "quota__ram": -1}


async def attempt(c: FullCloud, *, as_: str = "member", hints: Any = None, **keys: Any) -> ClientResponse:
    server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", **keys}
    body = {"server": server, **({"os:scheduler_hints": hints} if hints else {})}
    return await c.post("/servers", body, as_=as_, version="2.96", headers=DRY)


async def tried(c: FullCloud, **options: Any) -> dict[str, Any]:
    answer = await attempt(c, **options)
    assert answer.status == 200, answer.body
    plan: dict[str, Any] = answer.json()["plan"]
    return plan


async def dump_tables(db: Database) -> dict[str, list[Row]]:
    tables = {name: await db.fetch(f"SELECT * FROM {name}") for name in metadata.tables}
    assert tables["hypervisors"]
    return tables


@proves("POST /servers")
def test_administrators_see_chosen_host_and_allocations(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, zones=("az1", "az2")) as c:
            before = await dump_tables(c.db)
            plan = await tried(c, as_="admin", availability_zone="az1")
            assert (plan["sees"], plan["servers"], plan["placed"]) == ("all hosts", 1, 1)
            (one,) = plan["plans"]
            assert one["message"] == "2 of 3 hosts fit: 1 not in zone az1"
            chosen = one["chosen"]
            uuid = await c.db.fetch_value("SELECT uuid FROM hypervisors WHERE host = $1", chosen["host"])
            assert chosen["allocations"] == {uuid: {"resources": {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}}}
            assert len(one["alternates"]) == 1
            assert one["candidates"][0]["host"] == chosen["host"]
            assert await dump_tables(c.db) == before

    run(scenario())


def test_members_see_whether_a_host_is_found_and_reasons(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            before = await dump_tables(c.db)
            plan = await tried(c)
            assert (plan["sees"], plan["placed"], plan["plans"][0]["left"]) == ("reasons", 1, 3)
            refused = await tried(c, **HUGE)
            assert (refused["servers"], refused["placed"]) == (1, 0)
            assert refused["plans"][0]["message"] == "No valid host was found: 3 hosts: 3 lack 16384 MB memory"
            text = orjson.dumps([plan, refused]).decode()
            uuids = [row["uuid"] for row in await c.db.fetch("SELECT uuid FROM resource_providers")]
            assert not [name for name in (*c.hosts.names, *uuids) if name in text]
            assert await dump_tables(c.db) == before

    run(scenario())


def test_managers_see_hosts_assigned_to_the_project(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            await assign(c.db, c.hosts.names[:1], "filter_tenant_id", DEMO)
            (one,) = (await tried(c, as_="manager"))["plans"]
            shown = [one["chosen"], *one["alternates"]] if "chosen" in one else one["alternates"]
            uuid = await c.db.fetch_value("SELECT uuid FROM hypervisors WHERE host = $1", c.hosts.names[0])
            assert [host["hypervisor_uuid"] for host in shown] == [uuid]
            assert not [name for name in c.hosts.names if name in orjson.dumps(one).decode()]

    run(scenario())


def test_servers_of_one_request_are_planned_one_after_the_other(database_url: str) -> None:
    """Each of three hosts has 100 GB of disk, and a server takes 20."""

    async def scenario() -> None:
        async with full_cloud(database_url, **UNLIMITED) as c:
            plan = await tried(c, as_="admin", flavorRef="2", min_count=15, max_count=20)
            assert (plan["servers"], plan["placed"], len(plan["plans"])) == (20, 15, 16)
            hosts = [one["chosen"]["host"] for one in plan["plans"][:15]]
            assert sorted(hosts.count(name) for name in c.hosts.names) == [5, 5, 5]
            last = plan["plans"][-1]
            assert (last["placed"], last["chosen"]) == (False, None)
            assert last["message"] == "No valid host was found: 3 hosts: 3 lack 20 GB disk"
            again = await tried(c, as_="admin", flavorRef="2")
            assert again["placed"] == 1, "nothing of the first plan is left"

    run(scenario())


def test_plan_respects_anti_affinity_within_the_request(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **UNLIMITED) as c:
            body = {"server_group": {"name": "g", "policy": "anti-affinity"}}
            answer = await c.post("/os-server-groups", body, version="2.64", as_="admin")
            hints = {"group": answer.json()["server_group"]["id"]}
            before = await dump_tables(c.db)
            plan = await tried(c, as_="admin", hints=hints, max_count=4)
            assert (plan["servers"], plan["placed"]) == (4, 3)
            assert {one["chosen"]["host"] for one in plan["plans"][:3]} == set(c.hosts.names)
            assert await dump_tables(c.db) == before

    run(scenario())


@pytest.mark.parametrize(
    "keys, config",
    [
        ({"flavorRef": "nothing"}, {}),
        ({"name": ""}, {}),
        ({"availability_zone": "nowhere"}, {}),
        ({"min_count": 2, "max_count": 1}, {}),
        ({"min_count": 3}, {"quota__instances": 2}),
        ({"flavorRef": "3"}, {"quota__cores": 1}),
        ({"metadata": {"a": "b"}}, {"quota__metadata_items": 0}),
    ],
)
def test_errors_are_those_of_a_real_create(sqlite_url: str, keys: dict[str, Any], config: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, **config) as c:
            before = await dump_tables(c.db)
            dry = await attempt(c, **keys)
            assert await dump_tables(c.db) == before
            server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto", **keys}
            real = await c.post("/servers", {"server": server}, version="2.96")
            assert fault(dry) == fault(real)

    run(scenario())


def test_flavor_without_resources_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            await make_flavor(c, "nothing", disk=0)
            specs = {"extra_specs": {f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")}}
            assert (await c.post("/flavors/nothing/os-extra_specs", specs, as_="admin")).status == 200
            server = {"name": "s", "flavorRef": "nothing", "imageRef": c.image_id, "networks": "auto"}
            real = await c.post("/servers", {"server": server}, as_="admin", version="2.96")
            message = (
                "Flavor nothing cannot be placed: the flavor and its extra specs must request at least one resource"
            )
            assert fault(real) == (400, "badRequest", message)
            assert fault(await attempt(c, as_="admin", flavorRef="nothing")) == fault(real)
            assert fault(await c.get("/kilonova-fit?flavor=nothing", as_="admin")) == fault(real)

    run(scenario())


def test_policies_of_create_apply(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            assert (await attempt(c, as_="reader")).status == 403
            assert (await attempt(c, as_="nobody")).status == 401

    run(scenario())


def test_requests_without_dry_run_support_are_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            server = await c.boot_active()
            path = f"/servers/{server['id']}"
            for answer in (
                await c.delete(path, headers=DRY),
                await c.post(f"{path}/action", {"os-stop": None}, headers=DRY),
            ):
                status, _, message = fault(answer)
                assert status == 400
                assert message.startswith("X-Kilonova-Dry-Run: ")
            assert (await c.get(path, headers=DRY)).status == 200
            assert (await c.show(server["id"]))["status"] == "ACTIVE"
            answer = await c.get(path, headers={"X-Kilonova-Dry-Run": "perhaps"})
            assert fault(answer)[2] == "The header X-Kilonova-Dry-Run must be 0 or 1, not 'perhaps'."

    run(scenario())


def test_header_0_is_no_dry_run(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            body = {"server": {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}}
            answer = await c.post("/servers", body, version="2.96", headers={"X-Kilonova-Dry-Run": "0"})
            assert answer.status == 202
            await c.wait_until_settled(answer.json()["server"]["id"])

    run(scenario())
