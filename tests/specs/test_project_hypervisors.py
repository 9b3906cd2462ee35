"""Project admins and managers list the hypervisors assigned to their project, and boot on one of them (2.105)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.policy import Policy
from tests.compute.placements.support import assign
from tests.compute.servers.support import NO_RESOURCES, count_server_resources, create_refusal, make_flavor
from tests.support import run
from tests.support.cloud import ADMIN, DEMO, OTHER, Cloud, cloud, fault, put_server
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

UNKNOWN_ID = "11111111-1111-4111-8111-111111111111"
SUMMARY = ["hypervisor_hostname", "id", "state", "status"]
DETAIL = [
    *("host_ip", "hypervisor_hostname", "hypervisor_type", "hypervisor_version", "id", "service", "state", "status"),
    "uptime",
]
LISTS = [("/os-hypervisors", SUMMARY), ("/os-hypervisors/detail", DETAIL)]
HOST = "OS-EXT-SRV-ATTR:host"


async def uuids(c: Cloud) -> dict[str, str]:
    return {row["host"]: row["uuid"] for row in await c.db.fetch("SELECT host, uuid FROM hypervisors")}


async def listed(c: Cloud, path: str, as_: str, version: str = "2.105") -> list[dict[str, Any]]:
    answer = await c.get(path, as_=as_, version=version)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["hypervisors"]
    return found


async def own(c: Cloud, as_: str = "project-admin", query: str = "") -> list[str]:
    """The hosts of the hypervisors that the caller lists."""
    host_of = {uuid: host for host, uuid in (await uuids(c)).items()}
    return [host_of[one["id"]] for one in await listed(c, f"/os-hypervisors{query}", as_)]


# The list


@proves("GET /os-hypervisors", "GET /os-hypervisors/detail")
@pytest.mark.parametrize("who", ["project-admin", "manager"])
@pytest.mark.parametrize("path, fields", LISTS)
def test_projects_see_id_state_and_status_of_assigned_hypervisors(
    database_url: str, who: str, path: str, fields: list[str]
) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=3) as c:
            await assign(c.db, ["host2"], "filter_tenant_id", DEMO)
            uuid = (await uuids(c))["host2"]
            answer = (await c.get(path, as_=who, version="2.105")).json()
            shown = dict.fromkeys(fields) | {"id": uuid, "state": "up", "status": "enabled"}
            assert answer == {"hypervisors": [shown], "hypervisors_links": None, "links": []}
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET disabled = TRUE, forced_down = TRUE WHERE host = 'host2'")
            (one,) = await listed(c, path, who)
            assert one == shown | {"state": "down", "status": "disabled"}
            # Both lists succeed.
            for other, _ in LISTS:
                await listed(c, other, who)

    run(scenario())


@pytest.mark.parametrize(
    "aggregates, sees",
    [
        # metadata of aggregates: hosts, key, value
        ([], []),
        ([(["host1"], "filter_tenant_id", OTHER)], []),
        ([(["host1"], "filter_tenant_id", DEMO)], ["host1"]),
        ([(["host3", "host1"], "filter_tenant_id", DEMO)], ["host1", "host3"]),
        ([(["host1"], "filter_tenant_id", f"{OTHER},{DEMO}")], ["host1"]),
        ([(["host1"], "filter_tenant_id", f" {OTHER} , {DEMO} ")], ["host1"]),
        ([(["host1"], "filter_tenant_id3", DEMO)], ["host1"]),
        ([(["host1"], "filter_tenant_id_more", f"{DEMO}")], ["host1"]),
        # A host in several aggregates is listed once.
        ([(["host1"], "filter_tenant_id", DEMO), (["host1", "host2"], "filter_tenant_id2", DEMO)], ["host1", "host2"]),
        # An aggregate for another project does not remove an assignment.
        ([(["host1"], "filter_tenant_id", DEMO), (["host1"], "filter_tenant_id", OTHER)], ["host1"]),
        # Parts of an id and other keys do not assign hosts.
        ([(["host1"], "filter_tenant_id", DEMO + "0")], []),
        ([(["host1"], "filter_tenant_id", DEMO[:-1])], []),
        ([(["host1"], "tenant_id", DEMO)], []),
        ([(["host1"], "my_filter_tenant_id", DEMO)], []),
        ([(["host1"], "FILTER_TENANT_ID", DEMO)], []),
        ([(["host1"], "filterXtenantXid", DEMO)], []),
        ([(["nowhere"], "filter_tenant_id", DEMO)], []),
    ],
)
def test_assignment_by_aggregate_metadata(
    database_url: str, aggregates: list[tuple[list[str], str, str]], sees: list[str]
) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=3) as c:
            for hosts, key, value in aggregates:
                await assign(c.db, hosts, key, value)
            for who in ("project-admin", "manager"):
                assert await own(c, who) == sees
            # Hypervisors of other projects are hidden, also with the role admin.
            assert await own(c, "admin") == []
            assert len(await listed(c, "/os-hypervisors", "system")) == 3

    run(scenario())


@pytest.mark.parametrize(
    "who, sees",
    [
        ("system", "all"),
        ("system-reader", "all"),
        ("project-admin", "own"),
        ("manager", "own"),
        ("admin", "own"),
        ("member", 403),
        ("reader", 403),
        ("other", 403),
        ("service", 403),
    ],
)
@pytest.mark.parametrize("path", ["/os-hypervisors", "/os-hypervisors/detail"])
def test_policies(sqlite_url: str, who: str, sees: str | int, path: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=3) as c:
            await assign(c.db, ["host1"], "filter_tenant_id", f"{DEMO},{ADMIN}")
            answer = await c.get(path, as_=who, version="2.105")
            if isinstance(sees, int):
                assert fault(answer)[0] == sees
            elif sees == "all":
                # Unchanged.
                assert answer.json() == (await c.get(path, as_=who, version="2.104")).json()
                assert len(answer.json()["hypervisors"]) == 3
            else:
                assert [one["hypervisor_hostname"] for one in answer.json()["hypervisors"]] == [None]

    run(scenario())


@pytest.mark.parametrize("version", ["2.1", "2.53", "2.88", "2.104"])
def test_lists_before_2_105(sqlite_url: str, version: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=3) as c:
            await assign(c.db, ["host1"], "filter_tenant_id", DEMO)
            for path, _ in LISTS:
                for who in ("admin", "project-admin", "system"):
                    shown = await listed(c, path, who, version)
                    assert [one["hypervisor_hostname"] for one in shown] == [f"host{n}.example" for n in (1, 2, 3)]
                for who in ("manager", "member"):
                    assert fault(await c.get(path, as_=who, version=version))[0] == 403

    run(scenario())


@pytest.mark.parametrize(
    "rules, who, sees",
    [
        ('"os_compute_api:os-hypervisors:list-all": "role:admin"', "project-admin", 3),
        ('"os_compute_api:os-hypervisors:list-all": "role:manager"', "manager", 3),
        ('"os_compute_api:os-hypervisors:list-all": "role:admin"', "manager", 1),
        # `list-all` does not help callers who may not list hypervisors.
        (
            '"os_compute_api:os-hypervisors:list-all": "@"\n"os_compute_api:os-hypervisors:list-assigned": "!"\n'
            '"os_compute_api:os-hypervisors:list": "!"',
            "project-admin",
            403,
        ),
        ('"os_compute_api:os-hypervisors:list-assigned": "role:member and project_id:%(project_id)s"', "member", 1),
    ],
)
def test_list_all_policy(sqlite_url: str, tmp_path: Path, rules: str, who: str, sees: int) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(rules)

    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=3) as c:
            await assign(c.db, ["host1"], "filter_tenant_id", DEMO)
            c.services.policy = Policy(file)
            answer = await c.get("/os-hypervisors", as_=who, version="2.105")
            if answer.status != 200:
                assert fault(answer)[0] == sees
                return
            shown = answer.json()["hypervisors"]
            assert len(shown) == sees
            assert all((one["hypervisor_hostname"] is None) == (sees == 1) for one in shown)

    run(scenario())


# Its query


def test_pages_of_assigned_hypervisors(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=5, api__max_limit=3) as c:
            await assign(c.db, ["host1", "host2", "host4", "host5"], "filter_tenant_id", DEMO)
            known = await uuids(c)
            assert await own(c) == ["host1", "host2", "host4"]
            assert await own(c, query="?limit=2") == ["host1", "host2"]
            assert await own(c, query=f"?limit=2&marker={known['host2']}") == ["host4", "host5"]
            assert await own(c, query=f"?marker={known['host5']}") == []
            assert await own(c, query="?limit=0") == []
            for path, _ in LISTS:
                page = (await c.get(f"{path}?limit=1", as_="manager", version="2.105")).json()
                assert page["hypervisors_links"] is None
                (link,) = page["links"]
                assert link["rel"] == "next"
                assert link["href"].endswith(f"{path}?limit=1&marker={known['host1']}")
            # An unlisted marker is refused, whether or not the hypervisor exists.
            for marker in (known["host3"], UNKNOWN_ID, "x"):
                answer = await c.get(f"/os-hypervisors?marker={marker}", as_="manager", version="2.105")
                assert fault(answer)[::2] == (400, f"marker [{marker}] not found")

    run(scenario())


@pytest.mark.parametrize(
    "query, expected",
    [
        ("with_servers=false", 200),
        ("with_servers=true", 403),
        ("hypervisor_hostname_pattern=host1", 403),
        ("hypervisor_hostname_pattern=nope", 403),
        ("limit=-1", 400),
        ("unheard=of", 400),
    ],
)
@pytest.mark.parametrize("path", ["/os-hypervisors", "/os-hypervisors/detail"])
def test_projects_cannot_use_hostname_pattern_or_with_servers(
    sqlite_url: str, path: str, query: str, expected: int
) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=2) as c:
            await put_server(c.db, "s1", host="host1", project_id=OTHER)
            await assign(c.db, ["host1"], "filter_tenant_id", DEMO)
            for who in ("project-admin", "manager"):
                answer = await c.get(f"{path}?{query}", as_=who, version="2.105")
                assert answer.status == expected, answer.body
                assert b"s1" not in answer.body
            if expected == 403:
                assert "os-hypervisors:list-all" in fault(answer)[2]

    run(scenario())


# Boot on a hypervisor


async def prepared(c: FullCloud) -> dict[str, str]:
    """sim-002 is assigned to the project, sim-003 to another one, sim-001 to none."""
    await assign(c.db, ["sim-002"], "filter_tenant_id", DEMO)
    await assign(c.db, ["sim-003"], "filter_tenant_id", OTHER)
    return await uuids(c)


@proves("POST /servers")
@pytest.mark.parametrize("who", ["project-admin", "manager"])
def test_boot_on_assigned_hypervisor(database_url: str, who: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            known = await prepared(c)
            for keys in ({}, {"availability_zone": "nova"}, {"min_count": 2}):
                made = await c.boot(as_=who, version="2.105", hypervisor_uuid=known["sim-002"], **keys)
                shown = await c.wait_until_settled(made["id"])
                assert (shown["status"], shown[HOST]) == ("ACTIVE", "sim-002")

    run(scenario())


def test_all_other_uuids_get_the_same_error(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            known = await prepared(c)
            for who in ("project-admin", "manager", "admin"):
                told = set()
                for uuid in (known["sim-001"], known["sim-003"], UNKNOWN_ID, *([known["sim-002"]] * (who == "admin"))):
                    status, message = await create_refusal(c, "2.105", who, hypervisor_uuid=uuid)
                    assert uuid in message
                    told.add((status, message.replace(uuid, "U")))
                assert told == {(400, "Hypervisor U could not be found.")}

    run(scenario())


@pytest.mark.parametrize(
    "who, keys, expected",
    [
        ("member", {}, 403),
        ("member", {"availability_zone": "nowhere", "imageRef": UNKNOWN_ID, "flavorRef": "none"}, 403),
        ("reader", {}, 403),
        ("manager", {"host": "sim-002"}, 400),
        ("manager", {"hypervisor_hostname": "sim-002"}, 400),
        ("project-admin", {"host": "sim-002"}, 400),
        ("project-admin", {"hypervisor_hostname": "sim-002"}, 400),
        ("project-admin", {"availability_zone": "nova:sim-002"}, 404),
        ("project-admin", {"hypervisor_uuid": "sim-002"}, 400),
        ("project-admin", {"hypervisor_uuid": None}, 400),
        ("project-admin", {"hypervisor_uuid": 1}, 400),
        ("project-admin", {"hypervisor_uuid": ""}, 400),
    ],
)
def test_refused_requests(sqlite_url: str, who: str, keys: dict[str, Any], expected: int) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            known = await prepared(c)
            status, _ = await create_refusal(c, "2.105", who, **{"hypervisor_uuid": known["sim-002"], **keys})
            assert status == expected

    run(scenario())


def test_before_2_105_the_key_is_unknown(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            uuid = (await prepared(c))["sim-002"]
            for version in ("2.74", "2.104"):
                status, message = await create_refusal(c, version, "project-admin", hypervisor_uuid=uuid)
                assert (status, "hypervisor_uuid" in message) == (400, True)

    run(scenario())


def test_administrators_may_use_any_hypervisor(sqlite_url: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text('"os_compute_api:os-hypervisors:list-all": "role:admin"')

    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            known = await prepared(c)
            c.services.policy = Policy(file)
            shown = await c.wait_until_settled(
                (await c.boot(as_="admin", version="2.105", hypervisor_uuid=known["sim-001"]))["id"]
            )
            assert (shown["status"], shown[HOST]) == ("ACTIVE", "sim-001")
            assert (await create_refusal(c, "2.105", "admin", hypervisor_uuid=UNKNOWN_ID))[0] == 400
            assert (await create_refusal(c, "2.105", "manager", hypervisor_uuid=known["sim-001"]))[0] == 400

    run(scenario())


@pytest.mark.parametrize(
    "trouble, keys, reason",
    [
        ("disable", {}, "disabled"),
        ("force-down", {}, "down"),
        (None, {"flavorRef": "huge"}, "lacks 16000 MB memory"),
        (None, {"availability_zone": "az3"}, "not in zone az3"),
    ],
)
def test_scheduler_verifies_the_hypervisor(
    database_url: str, trouble: str | None, keys: dict[str, str], reason: str
) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, zones=("az1", "az2", "az3")) as c:
            known = await prepared(c)
            await make_flavor(c, "huge", ram=16000)
            if trouble is not None:
                body: dict[str, Any] = {"host": "sim-002", "binary": "nova-compute"}
                body |= {"forced_down": True} if trouble == "force-down" else {}
                assert (await c.put(f"/os-services/{trouble}", body, as_="admin", version="2.11")).status == 200
            made = await c.boot(as_="manager", version="2.105", hypervisor_uuid=known["sim-002"], **keys)
            shown = await c.wait_until_settled(made["id"])
            assert shown["status"] == "ERROR"
            assert reason in shown["fault"]["message"]
            assert await count_server_resources(c, shown["id"]) == NO_RESOURCES

    run(scenario())


def test_dry_run_shows_the_hypervisor(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            known = await prepared(c)

            async def tried(uuid: str, as_: str = "manager") -> Any:
                server = {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}
                body = {"server": {**server, "hypervisor_uuid": uuid}}
                headers = {"X-Kilonova-Dry-Run": "1"}
                return await c.post("/servers", body, as_=as_, version="2.105", headers=headers)

            answer = await tried(known["sim-002"])
            assert answer.status == 200, answer.body
            plan = answer.json()["plan"]
            assert (plan["sees"], plan["placed"]) == ("own hosts", 1)
            assert plan["plans"][0]["chosen"]["hypervisor_uuid"] == known["sim-002"]
            assert b"sim-00" not in answer.body
            for uuid in (known["sim-001"], UNKNOWN_ID):
                assert fault(await tried(uuid))[0] == 400
            assert fault(await tried(known["sim-002"], as_="member"))[0] == 403
            assert await c.db.fetch_value("SELECT COUNT(*) FROM servers") == 0

    run(scenario())


# Zones are names


@pytest.mark.parametrize("who", ["member", "manager", "project-admin", "admin"])
@pytest.mark.parametrize(
    "form", ["az1:sim-001", "az1:sim-001:sim-001", "az1::sim-001", ":sim-001", "az1:", "nope", "internal", "AZ1"]
)
def test_zone_with_host_is_refused_from_2_105(sqlite_url: str, who: str, form: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1, zones=("az1",)) as c:
            assert await create_refusal(c, "2.105", who, availability_zone=form) == (
                404,
                "The requested availability zone is not available",
            )

    run(scenario())


def test_zone_name_is_accepted(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, zones=("az1", "az2")) as c:
            for zone in ("az1", "az2"):
                made = await c.boot(version="2.105", availability_zone=zone)
                shown = await c.wait_until_settled(made["id"])
                assert (shown["OS-EXT-AZ:availability_zone"], shown["pinned_availability_zone"]) == (zone, zone)

    run(scenario())


def test_zone_with_host_before_2_105(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, zones=("az1", "az2")) as c:
            for form in ("az1:sim-001", "az1:sim-001:sim-001", "az1::sim-001", ":sim-001"):
                shown = await c.wait_until_settled(
                    (await c.boot(as_="admin", version="2.104", availability_zone=form))["id"]
                )
                assert (shown["status"], shown[HOST]) == ("ACTIVE", "sim-001")
            assert (await create_refusal(c, "2.104", "member", availability_zone="az1:sim-001"))[0] == 403
            assert (await create_refusal(c, "2.104", "member", availability_zone="nope"))[0] == 400

    run(scenario())
