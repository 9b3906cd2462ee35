"""Compute services: list, enable, disable, force down, delete."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.zones import model as zones
from kilonova.hosts.heartbeat import Heartbeat
from kilonova.placement.claims import Consumer, claim
from tests.support import run
from tests.support.cloud import Cloud, cloud, fault, put_server
from tests.support.full_cloud import full_cloud
from tests.support.route_coverage import proves


async def services(c: Cloud, query: str = "", version: str = "latest") -> dict[str, dict[str, Any]]:
    answer = await c.get(f"/os-services{query}", as_="admin", version=version)
    assert answer.status == 200, answer.body
    return {f"{s['host']}/{s['binary']}": s for s in answer.json()["services"]}


async def change_number(c: Cloud, host: str) -> int:
    """The host's number in the change sequence that schedulers follow."""
    found: int = await c.db.fetch_value(
        "SELECT p.change FROM resource_providers p JOIN hypervisors h ON h.uuid = p.uuid WHERE h.host = $1", host
    )
    return found


@proves("GET /os-services")
def test_list_shows_zone_state_and_status(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2, process_host="ctl") as c:
            found = await services(c)
            assert set(found) == {
                *("host1/nova-compute", "host2/nova-compute", "ctl/nova-conductor", "ctl/nova-scheduler")
            }
            assert set(await services(c, "?host=host1")) == {"host1/nova-compute"}
            assert set(await services(c, "?binary=nova-scheduler")) == {"ctl/nova-scheduler"}
            assert await services(c, "?host=host1&binary=nova-scheduler") == {}
            one = found["host1/nova-compute"]
            assert (one["zone"], one["state"], one["status"]) == ("nova", "up", "enabled")
            assert (one["disabled_reason"], one["forced_down"]) == (None, False)
            assert found["ctl/nova-scheduler"]["zone"] == "internal"
            assert (await c.get("/os-services")).status == 403
            assert (await c.get("/os-services", as_="system")).status == 200

    run(scenario())


def test_fields_by_version(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            old = {"id", "binary", "host", "zone", "status", "state", "disabled_reason", "updated_at"}
            (first,) = (await services(c, version="2.10")).values()
            assert set(first) == old
            assert isinstance(first["id"], int)
            (first,) = (await services(c, version="2.52")).values()
            assert set(first) == {*old, "forced_down"}
            assert isinstance(first["id"], int)
            (first,) = (await services(c, version="2.53")).values()
            assert len(first["id"]) == 36
            assert (await c.get("/os-services?colour=red", as_="admin", version="2.74")).status == 200
            assert (await c.get("/os-services?colour=red", as_="admin", version="2.75")).status == 400

    run(scenario())


def test_service_without_reports_is_down(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE services SET last_seen_at = last_seen_at - 61")
            assert (await services(c))["host1/nova-compute"]["state"] == "down"

    run(scenario())


@proves("PUT /os-services/{service_id}")
def test_update_by_uuid_from_2_53(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1, process_host="ctl") as c:
            path = f"/os-services/{(await services(c))['host1/nova-compute']['id']}"

            async def put(body: dict[str, Any], version: str = "2.53") -> dict[str, Any]:
                answer = await c.put(path, body, as_="admin", version=version)
                assert answer.status == 200, answer.body
                shown: dict[str, Any] = answer.json()["service"]
                assert shown == (await services(c))["host1/nova-compute"]
                return shown

            before = await change_number(c, "host1")
            shown = await put({"status": "disabled", "disabled_reason": "dust"})
            assert (shown["status"], shown["disabled_reason"], shown["zone"]) == ("disabled", "dust", "nova")
            assert await change_number(c, "host1") > before
            shown = await put({"forced_down": True})
            assert (shown["forced_down"], shown["state"], shown["disabled_reason"]) == (True, "down", "dust")
            shown = await put({"status": "enabled", "forced_down": "false"})
            assert (shown["status"], shown["disabled_reason"], shown["state"]) == ("enabled", None, "up")

    run(scenario())


@pytest.mark.parametrize(
    "body, words",
    [
        ({}, "No updates were requested"),
        ({"disabled_reason": "dust"}, "requires that status"),
        ({"status": "enabled", "disabled_reason": "dust"}, "requires that status"),
        ({"forced_down": True, "disabled_reason": "dust"}, "requires that status"),
        ({"status": "disabled", "disabled_reason": ""}, "disabled_reason"),
        ({"status": "disabled", "disabled_reason": "x" * 256}, "disabled_reason"),
        ({"status": "disabled", "disabled_reason": None}, "disabled_reason"),
        ({"status": "broken"}, "broken"),
        ({"host": "host1", "binary": "nova-compute"}, "host"),
        ({"forced_down": "perhaps"}, "perhaps"),
    ],
)
def test_invalid_updates_are_refused(sqlite_url: str, body: dict[str, Any], words: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1) as c:
            path = f"/os-services/{(await services(c))['host1/nova-compute']['id']}"
            status, _, message = fault(await c.put(path, body, as_="admin", version="2.53"))
            assert status == 400
            assert words in message

    run(scenario())


def test_only_compute_services_are_updated_by_uuid(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url, hosts=1, process_host="ctl") as c:
            found = await services(c)
            path = f"/os-services/{found['ctl/nova-scheduler']['id']}"
            refused = await c.put(path, {"status": "disabled"}, as_="admin", version="2.53")
            assert "Only nova-compute" in fault(refused)[2]
            unknown = "/os-services/00000000-0000-0000-0000-000000000000"
            assert (await c.put(unknown, {"status": "disabled"}, as_="admin", version="2.53")).status == 404
            assert (await c.put("/os-services/1", {"status": "disabled"}, as_="admin", version="2.53")).status == 400
            assert (await c.put(path, {"status": "disabled"}, version="2.53")).status == 403

    run(scenario())


@proves(
    "PUT /os-services/enable",
    "PUT /os-services/disable",
    "PUT /os-services/disable-log-reason",
    "PUT /os-services/force-down",
)
def test_update_by_host_and_binary_below_2_53(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            named = {"host": "host1", "binary": "nova-compute"}

            async def put(verb: str, version: str = "2.52", **more: Any) -> dict[str, Any]:
                answer = await c.put(f"/os-services/{verb}", {**named, **more}, as_="admin", version=version)
                assert answer.status == 200, answer.body
                shown: dict[str, Any] = answer.json()["service"]
                return shown

            async def now() -> dict[str, Any]:
                return (await services(c))["host1/nova-compute"]

            assert await put("disable", version="2.1") == {**named, "status": "disabled"}
            assert (await now())["status"] == "disabled"
            assert await put("enable", version="2.1") == {**named, "status": "enabled"}
            expected = {**named, "status": "disabled", "disabled_reason": "dust"}
            assert await put("disable-log-reason", disabled_reason="dust") == expected
            assert (await now())["disabled_reason"] == "dust"
            assert await put("enable") == {**named, "status": "enabled"}
            assert (await now())["disabled_reason"] is None
            assert await put("force-down", forced_down=True) == {**named, "forced_down": True}
            assert (await now())["state"] == "down"
            assert await put("force-down", forced_down="False") == {**named, "forced_down": False}

            async def status(verb: str, body: dict[str, Any], version: str = "2.52") -> int:
                return (await c.put(f"/os-services/{verb}", body, as_="admin", version=version)).status

            assert await status("enable", {**named, "host": "host9"}) == 404
            assert await status("disable-log-reason", named) == 400
            assert await status("force-down", named) == 400
            # All these routes accept the same keys, also keys that they do not use.
            assert await status("disable", {**named, "disabled_reason": "dust"}) == 200
            assert (await now())["disabled_reason"] is None
            assert await status("enable", {**named, "forced_down": True}, "2.11") == 200
            assert (await now())["forced_down"] is False
            assert await status("enable", {**named, "forced_down": True}, "2.10") == 400
            assert await status("enable", {**named, "colour": "red"}) == 400
            assert await status("explode", named) == 404
            assert await status("force-down", {**named, "forced_down": True}, "2.10") == 404
            for verb in ("enable", "disable", "disable-log-reason", "force-down"):
                complete = {**named, "disabled_reason": "dust", "forced_down": True}
                for body in ({"host": "host1"}, {"binary": "nova-compute"}, {**complete, "colour": "red"}, {}):
                    assert await status(verb, body) == 400, (verb, body)
                for wrong in ({"host": ""}, {"binary": 1}, {"disabled_reason": ""}, {"disabled_reason": "x" * 256}):
                    assert await status(verb, {**complete, **wrong}) == 400, (verb, wrong)
                # From 2.53 on the path names a service by its uuid.
                assert await status(verb, complete, "2.53") == 400
                assert await status(verb, {"status": "enabled"}, "2.53") == 400
            assert (await now())["status"] == "enabled"
            assert (await now())["forced_down"] is False

    run(scenario())


@proves("DELETE /os-services/{service_id}")
def test_delete_removes_hypervisor_provider_and_memberships(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2, process_host="ctl") as c:
            found = await services(c)
            path = f"/os-services/{found['host1/nova-compute']['id']}"
            async with c.db.transaction() as tx:
                await zones.create_zone(tx, "east", ["host1", "host2"])
            await put_server(c.db, "s1", host="host1")
            assert fault(await c.delete(path, as_="admin", version="2.53"))[:2] == (409, "conflictingRequest")
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE servers SET deleted = TRUE")
            gone = await c.delete(path, as_="admin", version="2.53")
            assert (gone.status, gone.body) == (204, b"")
            assert "host1/nova-compute" not in await services(c)
            assert [row["host"] for row in await c.db.fetch("SELECT host FROM hypervisors")] == ["host2"]
            assert await c.db.fetch_value("SELECT COUNT(*) FROM resource_providers") == 1
            assert await c.db.fetch("SELECT host FROM aggregate_hosts") == [{"host": "host2"}]
            assert await c.db.fetch_value("SELECT COUNT(*) FROM provider_aggregates") == 1
            assert (await c.delete(path, as_="admin", version="2.53")).status == 404
            number = (await services(c, version="2.1"))["ctl/nova-scheduler"]["id"]
            assert (await c.delete(f"/os-services/{number}", as_="admin", version="2.1")).status == 204
            assert (await c.delete("/os-services/9999", as_="admin", version="2.1")).status == 404
            for service_id in ("x", "-1", "1" * 20):
                status, _, message = fault(await c.delete(f"/os-services/{service_id}", as_="admin", version="2.1"))
                assert (status, service_id in message) == (400, True)
            assert (await c.delete("/os-services/1", version="2.1")).status == 403

    run(scenario())


def test_host_with_allocations_cannot_be_deleted(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=1) as c:
            path = f"/os-services/{(await services(c))['host1/nova-compute']['id']}"
            uuid = await c.db.fetch_value("SELECT uuid FROM hypervisors")
            async with c.db.transaction() as tx:
                assert await claim(tx, Consumer("c1", "p", "u"), {uuid: {"VCPU": 1}})
            status, _, message = fault(await c.delete(path, as_="admin", version="2.53"))
            assert status == 409
            assert "still holds allocations of 1 consumers" in message
            assert "host1/nova-compute" in await services(c)

    run(scenario())


def test_disabled_service_has_trait_in_placement(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            path = f"/os-services/{(await services(c))['host1/nova-compute']['id']}"

            async def marked() -> list[str]:
                rows = await c.db.fetch(
                    """
                    SELECT h.host FROM provider_traits t JOIN resource_providers p ON p.id = t.provider_id
                    JOIN hypervisors h ON h.uuid = p.uuid WHERE t.trait = 'COMPUTE_STATUS_DISABLED'
                    """
                )
                return [row["host"] for row in rows]

            async def put(body: dict[str, Any]) -> None:
                assert (await c.put(path, body, as_="admin", version="2.53")).status == 200

            await put({"status": "disabled"})
            assert await marked() == ["host1"]
            await put({"status": "disabled", "disabled_reason": "dust"})
            await put({"forced_down": True})
            assert await marked() == ["host1"]
            await put({"status": "enabled"})
            assert await marked() == []
            named = {"host": "host2", "binary": "nova-compute"}
            for verb, expected in (("disable", ["host2"]), ("enable", [])):
                assert (await c.put(f"/os-services/{verb}", named, as_="admin")).status == 200
                assert await marked() == expected

    run(scenario())


def test_running_agent_registers_again_after_delete(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            heartbeat = Heartbeat(c.db, c.hosts, process_host="control")
            assert await heartbeat.beat() == 4
            before = await services(c)
            for name in ("sim-001/nova-compute", "control/nova-conductor"):
                path = f"/os-services/{before[name]['id']}"
                assert (await c.delete(path, as_="admin", version="2.53")).status == 204
            assert await heartbeat.beat() == 2
            assert await heartbeat.beat() == 4
            after = await services(c)
            assert set(after) == set(before)
            assert {name for name in after if after[name]["id"] != before[name]["id"]} == {
                *("sim-001/nova-compute", "control/nova-conductor")
            }
            assert await c.db.fetch_value("SELECT COUNT(*) FROM resource_providers") == 2
            assert (await c.boot_active())["status"] == "ACTIVE"

    run(scenario())
