"""Placement attempts as seen by members, managers and administrators."""

from __future__ import annotations

import orjson

from tests.compute.placements.support import assign, attempts, create_unplaceable
from tests.support import run
from tests.support.cloud import DEMO, OTHER, fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

ROUTE = "GET /servers/{server_id}/kilonova-placement"
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
REASONS = "No valid host was found: 3 hosts: 3 lack 16384 MB memory"


@proves(ROUTE)
def test_members_see_reasons_with_counts_and_no_hosts(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await create_unplaceable(c)
            (attempt,) = await attempts(c, server["id"])
            assert attempt["message"] == REASONS
            assert (attempt["kind"], attempt["placed"], attempt["hosts"], attempt["left"]) == ("boot", False, 3, 0)
            assert attempt["asked"]["resources"]["DISK_GB"] == 160
            costly = [result for result in attempt["filters"] if result["rejected"]]
            assert costly == [
                {
                    "filter": "capacity",
                    "rejected": 3,
                    "left": 0,
                    "reasons": [{"text": "lack 16384 MB memory", "hosts": 3}],
                }
            ]
            assert not {"host", "rejections", "candidates"} & attempt.keys()
            _names_no_host(c, attempt)

    run(scenario())


def _names_no_host(c: FullCloud, shown: object) -> None:
    text = orjson.dumps(shown).decode()
    assert not [host for host in c.hosts.names if host in text]


@proves(ROUTE)
def test_administrators_see_every_host_with_need_and_have(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await create_unplaceable(c)
            for administrator in ("admin", "system"):
                (attempt,) = await attempts(c, server["id"], as_=administrator)
                assert {one["host"] for one in attempt["rejections"]} == set(c.hosts.names)
                one = attempt["rejections"][0]
                assert (one["filter"], one["reason"]) == ("capacity", "lack 16384 MB memory")
                assert (one["need"], one["have"]) == ("16384 MB memory", "15872 MB memory free of 15872 MB memory")
                assert one["free"]["DISK_GB"] == {"free": 100, "of": 100}
                assert attempt["host"] is None

    run(scenario())


@proves(ROUTE)
def test_managers_see_assigned_hosts_by_uuid(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            first, second, third = c.hosts.names
            await assign(c.db, [first], "filter_tenant_id", DEMO)
            await assign(c.db, [second], "filter_tenant_id_more", f"{OTHER}, {DEMO}")
            await assign(c.db, [third], "filter_tenant_id", f"{OTHER},{DEMO}0")
            sql = "SELECT uuid FROM hypervisors WHERE host = ANY($1)"
            own = {row["uuid"] for row in await c.db.fetch(sql, [first, second])}
            server = await create_unplaceable(c)
            for role in ("manager", "project-admin"):
                (attempt,) = await attempts(c, server["id"], as_=role)
                assert attempt["message"].startswith("No valid host was found: 3 hosts: ")
                assert {one["hypervisor_uuid"] for one in attempt["rejections"]} == own
                assert {one["need"] for one in attempt["rejections"]} == {"16384 MB memory"}
                _names_no_host(c, attempt)
            for role in ("member", "reader"):
                (attempt,) = await attempts(c, server["id"], as_=role)
                assert "rejections" not in attempt

    run(scenario())


@proves(ROUTE)
def test_assigned_hosts_reveal_nothing_of_other_users(database_url: str) -> None:
    """Managers see neither a host name that an administrator requested, nor why a host is disabled."""

    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            first, second, third = c.hosts.names
            await assign(c.db, [first, second], "filter_tenant_id", DEMO)
            body = {"host": first, "binary": "nova-compute", "disabled_reason": f"swaps disks with {second}"}
            answer = await c.put("/os-services/disable-log-reason", body, as_="admin")
            assert answer.status == 200, answer.body
            server = await create_unplaceable(c, as_="project-admin", host=third)
            (attempt,) = await attempts(c, server["id"], as_="manager")
            assert "1 not the requested destination" in attempt["message"]
            assert [one["reason"] for one in attempt["rejections"]] == ["disabled", "not the requested destination"]
            _names_no_host(c, attempt)
            _names_no_host(c, await c.show(server["id"], as_="member"))

    run(scenario())


def test_managers_without_assigned_hosts_see_no_hosts(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            (attempt,) = await attempts(c, (await create_unplaceable(c))["id"], as_="manager")
            assert (attempt["rejections"], attempt["candidates"]) == ([], [])

    run(scenario())


@proves(ROUTE)
def test_successful_attempt_shows_candidates_and_weights(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, zones=("az1", "az2")) as c:
            server = await c.boot_active(availability_zone="az1")
            (attempt,) = await attempts(c, server["id"], as_="admin")
            assert attempt["host"] == server["OS-EXT-SRV-ATTR:host"]
            assert attempt["message"] == "2 of 3 hosts fit: 1 not in zone az1"
            assert attempt["asked"]["zone"] == "az1"
            assert attempt["host"] in {one["host"] for one in attempt["candidates"]}
            assert len(attempt["candidates"]) == 2
            best = attempt["candidates"][0]
            assert best["weights"].keys() >= {"ram", "cpu", "disk"}
            assert best["free"]["VCPU"]["of"] >= best["free"]["VCPU"]["free"] > 0
            (attempt,) = await attempts(c, server["id"])
            assert attempt["placed"]
            _names_no_host(c, attempt)

    run(scenario())


def test_fault_and_event_have_the_reason(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await create_unplaceable(c)
            for role in ("member", "admin"):
                shown = (await c.show(server["id"], as_=role))["fault"]
                assert (shown["code"], shown["message"]) == (500, REASONS)
                assert ("details" in shown) == (role == "admin")
            path = f"/servers/{server['id']}/os-instance-actions"
            (action,) = (await c.get(path)).json()["instanceActions"]
            assert action["message"] == "Error"
            path = f"{path}/{action['request_id']}"
            events = (await c.get(path, as_="admin", version="2.84")).json()["instanceAction"]["events"]
            (failed,) = [event for event in events if event["result"] == "Error"]
            assert failed["details"] == REASONS
            assert f"{c.hosts.names[0]}: lacks 16384 MB memory: 15872 MB" in failed["traceback"]
            for version, said in (("2.51", [None]), ("2.84", [REASONS])):
                events = (await c.get(path, version=version)).json()["instanceAction"]["events"]
                assert "traceback" not in {key for event in events for key in event}
                assert [event.get("details") for event in events if event["result"] == "Error"] == said

    run(scenario())


@proves(ROUTE)
def test_attempts_of_deleted_servers_are_shown(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server = await c.boot_active()
            assert (await c.delete(f"/servers/{server['id']}")).status == 204
            await c.wait_until_deleted(server["id"])
            for version in ("2.1", "2.20", "2.21", "2.96"):
                assert len(await attempts(c, server["id"], version=version)) == 1
            answer = await c.get(f"/servers/{server['id']}/kilonova-placement", as_="other")
            assert answer.status == 404

    run(scenario())


@proves(ROUTE)
def test_attempts_of_invisible_servers_are_404(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            server = await c.boot_active()
            for server_id, role in (
                (server["id"], "other"),
                (UNKNOWN_ID, "member"),
                (UNKNOWN_ID, "admin"),
                ("x", "admin"),
            ):
                answer = await c.get(f"/servers/{server_id}/kilonova-placement", as_=role)
                assert fault(answer) == (404, "itemNotFound", f"Instance {server_id} could not be found.")
            answer = await c.get(f"/servers/{server['id']}/kilonova-placement", as_=None)
            assert answer.status == 401
            assert len(await attempts(c, server["id"], as_="reader")) == 1
            answer = await c.get(f"/servers/{server['id']}/kilonova-placement?limit=0")
            assert answer.json() == {"sees": "reasons", "attempts": []}

    run(scenario())
