"""Instance actions and their events, in all versions."""

from __future__ import annotations

import asyncio
from typing import Any

from kilonova import clock
from tests.compute.servers.support import act, rules, wait_for_fields
from tests.support import run
from tests.support.cloud import DEMO, fault
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.route_coverage import proves

UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
ACTION = {"action", "instance_uuid", "request_id", "user_id", "project_id", "start_time", "message"}
EVENT = {"event", "start_time", "finish_time", "result"}


def path(server_id: str, more: str = "") -> str:
    return f"/servers/{server_id}/os-instance-actions{more}"


async def actions(c: FullCloud, server_id: str, query: str = "", **options: Any) -> list[dict[str, Any]]:
    answer = await c.get(path(server_id, query), **options)
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["instanceActions"]
    return found


async def action(c: FullCloud, server_id: str, request_id: str, **options: Any) -> dict[str, Any]:
    answer = await c.get(path(server_id, f"/{request_id}"), **options)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()["instanceAction"]
    return found


async def lived(c: FullCloud) -> str:
    """A server that was created, stopped and started."""
    server_id = str((await c.boot_active())["id"])
    for name in ("os-stop", "os-start"):
        assert (await act(c, server_id, name, as_="manager")).status == 202
        await c.wait_until_settled(server_id)
    return server_id


@proves("GET /servers/{server_id}/os-instance-actions", "GET /servers/{server_id}/os-instance-actions/{request_id}")
def test_actions_are_listed_newest_first(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            body = {"server": {"name": "s", "flavorRef": "1", "imageRef": c.image_id, "networks": "auto"}}
            answer = await c.post("/servers", body, version="2.37")
            created = answer.headers["x-openstack-request-id"]
            server_id = answer.json()["server"]["id"]
            await c.wait_until_settled(server_id)
            stopped = (await act(c, server_id, "os-stop", as_="manager")).headers["x-compute-request-id"]
            await c.wait_until_settled(server_id)
            listed = await actions(c, server_id)
            assert [(a["action"], a["request_id"], a["user_id"]) for a in listed] == [
                ("stop", stopped, "manager-id"),
                ("create", created, "member-id"),
            ]
            for each in listed:
                assert each["instance_uuid"] == server_id
                assert each["project_id"] == DEMO
                assert each["message"] is None
                assert abs(clock.parse(each["start_time"] + "Z") - clock.now()) < 60
            shown = await action(c, server_id, created, version="2.51")
            assert [event["event"] for event in shown["events"]] == [
                "choose host",
                "claim",
                "make ports",
                "spawn",
                "settle",
            ]
            assert {event["result"] for event in shown["events"]} == {"Success"}
            times = [event[key] for event in shown["events"] for key in ("start_time", "finish_time")]
            assert times == sorted(times)
            assert fault(await c.get(path(server_id, f"/req-{UNKNOWN_ID}"))) == (
                404,
                "itemNotFound",
                f"Action for request_id req-{UNKNOWN_ID} on instance {server_id} not found",
            )
            other = (await c.boot_active())["id"]
            assert (await c.get(path(other, f"/{created}"))).status == 404

    run(scenario())


def test_fields_by_version(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = await lived(c)
            request_id = (await actions(c, server_id))[0]["request_id"]
            for version, updated, member, admin in (
                ("2.1", False, None, {"traceback"}),
                ("2.50", False, None, {"traceback"}),
                ("2.51", False, set(), {"traceback"}),
                ("2.57", False, set(), {"traceback"}),
                ("2.58", True, set(), {"traceback"}),
                ("2.61", True, set(), {"traceback"}),
                ("2.62", True, {"hostId"}, {"traceback", "host", "hostId"}),
                ("2.83", True, {"hostId"}, {"traceback", "host", "hostId"}),
                ("2.84", True, {"hostId", "details"}, {"traceback", "host", "hostId", "details"}),
                ("2.106", True, {"hostId", "details"}, {"traceback", "host", "hostId", "details"}),
            ):
                fields = ACTION | ({"updated_at"} if updated else set())
                for who, more in (("member", member), ("reader", member), ("admin", admin)):
                    for listed in await actions(c, server_id, version=version, as_=who):
                        assert set(listed) == fields, (version, who)
                    shown = await action(c, server_id, request_id, version=version, as_=who)
                    assert set(shown) == fields | ({"events"} if more is not None else set()), (version, who)
                    for event in shown.get("events", []):
                        assert set(event) == EVENT | (more or set()), (version, who)

    run(scenario())


def test_events_show_host_like_the_server(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=1) as c:
            server_id = await lived(c)
            server = await c.show(server_id, as_="member")
            for listed in await actions(c, server_id):
                for who in ("member", "admin"):
                    shown = await action(c, server_id, listed["request_id"], version="2.62", as_=who)
                    event = next(event for event in shown["events"] if event["event"] == "settle")
                    assert event["hostId"] == server["hostId"], (listed["action"], who)
                    if who == "admin":
                        assert event["host"] == "sim-001"

    run(scenario())


def test_events_of_a_move_show_the_called_host(database_url: str) -> None:
    """Events of the source have the source as host, and not the destination."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            server = await c.boot_active()
            server_id, source = server["id"], server["OS-EXT-SRV-ATTR:host"]
            destination = ({"sim-001", "sim-002"} - {source}).pop()
            with rules(c) as sim:
                sim.add_failure(source, "park", "error", 1, "the drawer is stuck")
            for _ in range(2):
                assert (await act(c, server_id, "migrate", as_="admin", version="2.1")).status == 202
                await c.wait_until_settled(server_id)
            done, failed = [
                [(event["event"], event["host"], event["traceback"]) for event in shown["events"]]
                for listed in (await actions(c, server_id))[:2]
                for shown in [await action(c, server_id, listed["request_id"], version="2.84", as_="admin")]
            ]
            assert done[2:] == [
                ("stop guest", source, None),
                ("park guest", source, None),
                ("move volumes", destination, None),
                ("move ports", destination, None),
                ("build guest", destination, None),
                ("complete volumes", destination, None),
                ("hand over", destination, None),
            ]
            assert failed[2:] == [
                ("stop guest", source, None),
                ("park guest", source, f"{source}: the drawer is stuck"),
                ("undo park guest", source, None),
                ("undo stop guest", source, None),
                ("undo claim", source, None),
            ]

    run(scenario())


def test_failed_event_has_details_for_administrators(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "power_off", "error", 1, "the button is stuck")
            await act(c, server_id, "os-stop")
            await c.wait_until_settled(server_id)
            failed = (await actions(c, server_id))[0]
            assert (failed["action"], failed["message"]) == ("stop", "Error")
            shown = await action(c, server_id, failed["request_id"], version="2.84", as_="admin")
            found = [(event["event"], event["result"], event["details"]) for event in shown["events"]]
            assert shown["events"][0]["traceback"] == f"{shown['events'][0]['host']}: the button is stuck"
            assert found == [
                ("power off", "Error", "The host could not power off: refused by the hypervisor"),
                ("undo power off", "Success", None),
            ]
            for who in ("member", "manager"):
                shown = await action(c, server_id, failed["request_id"], version="2.84", as_=who)
                assert [event["result"] for event in shown["events"]] == ["Error", "Success"]
                assert [event["details"] for event in shown["events"]] == [details for *_, details in found]
                assert "traceback" not in shown["events"][0]

    run(scenario())


def test_boot_has_events_for_every_tried_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "error", None, "the disk is on fire")
            server_id = (await c.boot())["id"]
            assert (await c.wait_until_settled(server_id))["status"] == "ERROR"
            (created,) = await actions(c, server_id)
            assert created["message"] == "Error"
            shown = await action(c, server_id, created["request_id"], version="2.84", as_="admin")
            tries = [event for event in shown["events"] if event["event"] == "spawn"]
            assert {event["host"] for event in tries} == {"sim-001", "sim-002"}
            assert all(event["details"] == "refused by the hypervisor" for event in tries)
            assert all(event["traceback"] == f"{event['host']}: the disk is on fire" for event in tries)
            last = [event for event in shown["events"] if event["event"] == "choose host"][-1]
            assert last["host"] is None
            message = (await c.show(server_id))["fault"]["message"]
            assert (last["result"], last["details"]) == ("Error", message)
            seen = await action(c, server_id, created["request_id"], version="2.84", as_="member")
            assert [event["details"] for event in seen["events"]][-len(shown["events"]) :] == [
                event["details"] for event in shown["events"]
            ]

    run(scenario())


def test_running_action_has_no_result(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            with rules(c) as sim:
                sim.add_failure("*", "reboot", "hang", 1, None)
                await act(c, server_id, "reboot", {"type": "HARD"})
                await wait_for_fields(c, server_id, status="HARD_REBOOT")
                running = (await actions(c, server_id))[0]
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while not (shown := await action(c, server_id, running["request_id"], version="2.51"))["events"]:
                        await asyncio.sleep(0.01)
                (event,) = shown["events"]
                assert (event["event"], event["result"], event["finish_time"]) == ("reboot guest", None, None)
                assert (shown["action"], shown["message"]) == ("reboot", None)
                sim.clear()
            await c.wait_until_settled(server_id)
            shown = await action(c, server_id, running["request_id"], version="2.51")
            assert [event["result"] for event in shown["events"]] == ["Success", "Success"]

    run(scenario())


class TestPages:
    def test_limit_and_marker(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                server_id = await lived(c)
                everything = await actions(c, server_id, version="2.58")
                assert [each["action"] for each in everything] == ["start", "stop", "create"]
                for limit in (1, 2):
                    found, query = [], f"?limit={limit}"
                    while query:
                        body = (await c.get(path(server_id, query), version="2.58")).json()
                        found += body["instanceActions"]
                        assert len(body["instanceActions"]) <= limit
                        links = body.get("links", [])
                        assert [link["rel"] for link in links] in ([], ["next"])
                        query = "?" + links[0]["href"].partition("?")[2] if links else ""
                    assert found == everything
                assert "links" not in (await c.get(path(server_id), version="2.58")).json()
                assert await actions(c, server_id, "?limit=0", version="2.58") == []
                # Older versions have no pages.
                assert len(await actions(c, server_id, "?limit=1", version="2.57")) == 3
                answer = await c.get(path(server_id, "?limit=1"), version="2.57")
                assert set(answer.json()) == {"instanceActions"}

        run(scenario())

    def test_changes_since_and_changes_before(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                server_id = await lived(c)
                start, stop, create = await actions(c, server_id, version="2.58")

                async def found(query: str, version: str = "2.66") -> list[str]:
                    return [each["action"] for each in await actions(c, server_id, f"?{query}", version=version)]

                assert await found("changes-since=2000-01-01T00:00:00Z", "2.58") == ["start", "stop", "create"]
                assert await found("changes-since=2100-01-01T00:00:00Z", "2.58") == []
                assert await found(f"changes-since={stop['updated_at']}", "2.58") == ["start", "stop"]
                assert await found(f"changes-before={stop['updated_at']}") == ["stop", "create"]
                both = f"changes-since={stop['updated_at']}&changes-before={stop['updated_at']}"
                assert await found(both) == ["stop"]
                assert await found("changes-before=2000-01-01T00:00:00Z") == []
                assert await found("changes-since=2100-01-01T00:00:00Z", "2.57") == ["start", "stop", "create"]
                assert create["updated_at"] >= create["start_time"]
                assert start["start_time"] >= stop["updated_at"]

        run(scenario())

    def test_invalid_queries_are_refused(self, database_url: str) -> None:
        async def scenario() -> None:
            async with full_cloud(database_url) as c:
                server_id = (await c.boot_active())["id"]
                for version, query, words in (
                    ("2.58", "limit=-1", "limit"),
                    ("2.58", "limit=x", "limit"),
                    ("2.58", "marker=nobody", "marker [nobody] not found"),
                    ("2.58", "changes-since=yesterday", "changes-since"),
                    ("2.58", "changes-before=2026-01-01T00:00:00Z", "changes-before"),
                    ("2.66", "changes-before=yesterday", "changes-before"),
                    ("2.66", "changes-since=2026-01-02T00:00:00&changes-before=2026-01-01T00:00:00", "changes-since"),
                    ("2.58", "unheard=of", "unheard"),
                ):
                    status, _, message = fault(await c.get(path(server_id, f"?{query}"), version=version))
                    assert (status, words in message) == (400, True), (query, message)
                request_id = (await actions(c, server_id))[0]["request_id"]
                assert (await c.get(path(server_id, f"/{request_id}?unheard=of"), version="2.101")).status == 200
                assert (await c.get(path(server_id, f"/{request_id}?unheard=of"), version="2.102")).status == 400

        run(scenario())


def test_actions_of_deleted_servers(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            await c.delete(f"/servers/{server_id}")
            await c.wait_until_deleted(server_id)
            listed = await actions(c, server_id, version="2.21")
            assert [each["action"] for each in listed] == ["delete", "create"]
            for each in listed:
                assert (await action(c, server_id, each["request_id"], version="2.21"))["action"] == each["action"]
                assert (await c.get(path(server_id, f"/{each['request_id']}"), version="2.20")).status == 404
            assert fault(await c.get(path(server_id), version="2.20"))[:2] == (404, "itemNotFound")
            assert (await c.get(path(server_id), version="2.21", as_="other")).status == 404

    run(scenario())


def test_policies(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url) as c:
            server_id = (await c.boot_active())["id"]
            request_id = (await actions(c, server_id))[0]["request_id"]
            for who, status in (
                ("reader", 200),
                ("member", 200),
                ("manager", 200),
                ("project-admin", 200),
                ("admin", 200),
                ("system", 200),
                ("other", 404),
                ("service", 404),
                (None, 401),
            ):
                assert (await c.get(path(server_id), as_=who)).status == status, who
                assert (await c.get(path(server_id, f"/{request_id}"), as_=who)).status == status, who
            assert (await c.get(path(UNKNOWN_ID))).status == 404

    run(scenario())
