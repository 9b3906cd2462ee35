"""Unshelve to a host (2.91): the destination, the pin afterwards, and the order of checks.

See docs/specs/unshelve-to-host.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.compute.placements.support import assign
from tests.compute.servers.moves import (
    HOST,
    action_refusal,
    disable_host,
    dump_server,
    force_down,
    newest_action,
    run_move,
)
from tests.compute.servers.shelved import NO_OFFLOAD, boot_shelved, guest_disk, list_snapshots, wait_for_no_snapshots
from tests.compute.servers.support import act, rules, wait_for_fields
from tests.support import run
from tests.support.cloud import OTHER, cloud, fault
from tests.support.full_cloud import FullCloud, full_cloud
from tests.support.route_coverage import proves

AZ1, AZ2 = "az1", "az2"
IN_AZ1, IN_AZ2 = "sim-001", "sim-002"
ZONE_OF = {IN_AZ1: AZ1, IN_AZ2: AZ2}
ABSENT: Any = ...
PIN = "pinned_availability_zone"
UNSHELVE = "POST /servers/{server_id}/action#unshelve"
CLOUD: dict[str, Any] = {"hosts": 2, "zones": (AZ1, AZ2)}


@dataclass(frozen=True)
class Goes:
    """The server goes to this host, although the other one has more capacity, and has this pin afterwards."""

    host: str
    pin: str | None
    freely: bool = False
    """Nothing holds it: it goes to the emptier host."""


@dataclass(frozen=True)
class Refused:
    status: int


def freely(pin: str | None) -> Goes:
    return Goes(IN_AZ2, pin, freely=True)


def body_of(zone: Any, host: Any) -> dict[str, Any] | None:
    """The request's body; with neither key it is null."""
    given = {"availability_zone": zone, "host": host}
    return {key: value for key, value in given.items() if value is not ABSENT} or None


async def offloaded(c: FullCloud, pin: str | None = None, **keys: Any) -> str:
    """A shelved and offloaded server of the member that was booted with this pin."""
    more = {} if pin is None else {"availability_zone": pin}
    shown = await boot_shelved(c, networks="none", **more, **keys)
    assert shown[PIN] == pin
    return str(shown["id"])


async def fill(c: FullCloud, host: str) -> None:
    """Fill the host so far that the scheduler prefers any other one."""
    zone = f"{ZONE_OF[host]}:{host}"
    await c.boot_active(as_="admin", flavorRef="2", networks="none", availability_zone=zone)


@pytest.mark.parametrize(
    ("pin", "zone", "host", "expect"),
    [
        # Pin, availability_zone in the request, host in the request, result
        (None, ABSENT, ABSENT, freely(pin=None)),
        (None, None, ABSENT, freely(pin=None)),
        (None, ABSENT, IN_AZ1, Goes(IN_AZ1, pin=None)),
        (None, None, IN_AZ1, Goes(IN_AZ1, pin=None)),
        (None, AZ1, ABSENT, Goes(IN_AZ1, pin=AZ1)),
        (None, AZ1, IN_AZ1, Goes(IN_AZ1, pin=AZ1)),
        (None, AZ1, IN_AZ2, Refused(409)),
        (AZ1, ABSENT, ABSENT, Goes(IN_AZ1, pin=AZ1)),
        (AZ1, None, ABSENT, freely(pin=None)),
        (AZ1, ABSENT, IN_AZ1, Goes(IN_AZ1, pin=AZ1)),
        (AZ1, ABSENT, IN_AZ2, Refused(409)),
        (AZ1, None, IN_AZ1, Goes(IN_AZ1, pin=None)),
        (AZ1, None, IN_AZ2, Goes(IN_AZ2, pin=None)),
        (AZ1, AZ2, ABSENT, Goes(IN_AZ2, pin=AZ2)),
        (AZ1, AZ2, IN_AZ2, Goes(IN_AZ2, pin=AZ2)),
        (AZ1, AZ2, IN_AZ1, Refused(409)),
    ],
)
def test_destination_and_pin(database_url: str, pin: str | None, zone: Any, host: Any, expect: Goes | Refused) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **CLOUD) as c:
            server_id = await offloaded(c, pin)
            before = await dump_server(c, server_id)
            body = body_of(zone, host)
            if isinstance(expect, Refused):
                assert (await action_refusal(c, server_id, "unshelve", body, as_="project-admin"))[0] == expect.status
                assert await dump_server(c, server_id) == before
                return
            await fill(c, IN_AZ1 if expect.freely else expect.host)
            shown = await run_move(c, server_id, "unshelve", body, as_="project-admin")
            assert (shown["status"], shown[HOST], shown[PIN]) == ("ACTIVE", expect.host, expect.pin)
            assert shown["OS-EXT-AZ:availability_zone"] == ZONE_OF[expect.host]

    run(scenario())


@proves(UNSHELVE)
def test_unshelve_to_host_restores_the_disk(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **CLOUD) as c:
            server = await c.boot_active(availability_zone=AZ1)
            was = await guest_disk(c, server["id"])
            await run_move(c, server["id"], "shelve", None, as_="member")
            body = {"availability_zone": None, "host": IN_AZ2}
            shown = await run_move(c, server["id"], "unshelve", body, as_="project-admin", version="2.91")
            assert (shown["status"], shown[HOST], shown[PIN]) == ("ACTIVE", IN_AZ2, None)
            assert await guest_disk(c, server["id"]) == was
            await wait_for_no_snapshots(c)

    run(scenario())


# Checks before anything changes, in this order


def test_policy_of_host(database_url: str) -> None:
    """403 precedes all other errors."""

    async def scenario() -> None:
        async with full_cloud(database_url, **CLOUD) as c:
            server_id = await offloaded(c, AZ1)
            running = (await c.boot_active(networks="none"))["id"]
            for who in ("member", "manager", "reader"):
                for body in ({"host": IN_AZ1}, {"host": IN_AZ2}, {"host": "nobody"}, body_of("nowhere", "nobody")):
                    for subject in (server_id, running):
                        code, _ = await action_refusal(c, subject, "unshelve", body, as_=who)
                        assert code == 403, (who, body)
            assert (await action_refusal(c, server_id, "unshelve", {"host": IN_AZ1}, as_="other"))[0] == 404
            assert (await action_refusal(c, server_id, "unshelve", None, as_="reader"))[0] == 403
            shown = await run_move(c, server_id, "unshelve", {"availability_zone": AZ2}, as_="member")
            assert (shown["status"], shown[HOST], shown[PIN]) == ("ACTIVE", IN_AZ2, AZ2), "a zone is for everybody"

    run(scenario())


@pytest.mark.parametrize("body", [body_of("nowhere", "nobody"), {"host": IN_AZ1}, {"availability_zone": None}])
def test_host_and_zone_need_an_offloaded_server(sqlite_url: str, body: dict[str, Any]) -> None:
    """409 precedes errors for unknown names."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, **CLOUD, **NO_OFFLOAD) as c:
            server_id = (await boot_shelved(c, "SHELVED", networks="none"))["id"]
            code, message = await action_refusal(c, server_id, "unshelve", body)
            assert (code, "it is still on its host" in message) == (409, True)
            running = (await c.boot_active(networks="none"))["id"]
            code, message = await action_refusal(c, running, "unshelve", body)
            assert (code, message) == (409, f"Cannot 'unshelve' instance {running} while it is in vm_state active")
            assert (await run_move(c, server_id, "unshelve", None))["status"] == "ACTIVE"

    run(scenario())


def test_zone_is_checked_before_host(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **CLOUD) as c:
            server_id = await offloaded(c, AZ1)
            before = await dump_server(c, server_id)
            for zone, host, code, message in (
                ("nowhere", ABSENT, 400, "The requested availability zone is not available"),
                ("nowhere", IN_AZ1, 400, "The requested availability zone is not available"),
                ("nowhere", "nobody", 400, "The requested availability zone is not available"),
                (f"{AZ1}:{IN_AZ1}", ABSENT, 400, "The requested availability zone is not available"),
                (AZ2, "nobody", 400, "Compute host nobody could not be found."),
                (ABSENT, "nobody", 400, "Compute host nobody could not be found."),
                (None, "nobody", 400, "Compute host nobody could not be found."),
                (ABSENT, IN_AZ2, 409, f"Host {IN_AZ2} is not in the availability zone {AZ1}."),
                (AZ2, IN_AZ1, 409, f"Host {IN_AZ1} is not in the availability zone {AZ2}."),
            ):
                assert await action_refusal(c, server_id, "unshelve", body_of(zone, host)) == (code, message)
            assert await dump_server(c, server_id) == before

    run(scenario())


@pytest.mark.parametrize(
    "text",
    [
        '{"unshelve": {}}',
        '{"unshelve": {"foo": "bar"}}',
        '{"unshelve": {"host": "sim-001", "foo": "bar"}}',
        '{"unshelve": {"host": "sim-001", "host": "sim-001"}}',
        '{"unshelve": {"host": "sim-001", "host": "sim-002"}}',
        '{"unshelve": {"availability_zone": "az1", "availability_zone": null}}',
        '{"unshelve": null, "unshelve": {"host": "sim-001"}}',
        '{"unshelve": {"host": null}}',
        '{"unshelve": {"host": ""}}',
        '{"unshelve": {"host": ["sim-001"]}}',
        '{"unshelve": {"availability_zone": ""}}',
        '{"unshelve": {"availability_zone": ["az1"]}}',
        '{"unshelve": "sim-001"}',
        '{"unshelve": []}',
    ],
)
def test_invalid_bodies_are_refused(sqlite_url: str, text: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            server_id = "11111111-1111-1111-1111-111111111111"
            headers = {"Content-Type": "application/json"}
            path, content = f"/servers/{server_id}/action", text.encode()
            answer = await c.request("POST", path, content=content, headers=headers, as_="admin", version="2.91")
            assert fault(answer)[:2] == (400, "badRequest")
            if text.count('"host"') == 2:
                assert "The key 'host' appears twice" in fault(answer)[2]

    run(scenario())


# Refused by the scheduler: the server stays as it was


async def disabled(c: FullCloud, host: str) -> None:
    await disable_host(c, host)


async def down(c: FullCloud, host: str) -> None:
    await force_down(c, host)


async def full(c: FullCloud, host: str) -> None:
    sql = "SELECT total, reserved FROM inventories i JOIN resource_providers p ON p.id = i.provider_id"
    row = await c.db.fetch_one(f"{sql} WHERE p.name = $1 AND resource_class = 'MEMORY_MB'", host)
    assert row is not None
    flavor = {"name": "whole", "id": "whole", "ram": row["total"] - row["reserved"], "vcpus": 1, "disk": 1}
    assert (await c.post("/flavors", {"flavor": flavor}, as_="admin", version="2.1")).status == 200
    await c.boot_active(as_="admin", flavorRef="whole", networks="none", availability_zone=f"{ZONE_OF[host]}:{host}")


async def isolated(c: FullCloud, host: str) -> None:
    await assign(c.db, [host], "filter_tenant_id", OTHER)


@pytest.mark.parametrize("spoil", [disabled, down, full, isolated])
@pytest.mark.parametrize("body", [{"host": IN_AZ2, "availability_zone": AZ2}, {"availability_zone": AZ2}])
def test_pin_is_kept_if_no_host_is_found(sqlite_url: str, spoil: Any, body: Mapping[str, Any]) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, **CLOUD) as c:
            server_id = await offloaded(c, AZ1)
            await spoil(c, IN_AZ2)
            before = await dump_server(c, server_id)
            shown = await run_move(c, server_id, "unshelve", body, as_="project-admin")
            assert (shown["status"], shown[HOST], shown[PIN]) == ("SHELVED_OFFLOADED", None, AZ1)
            assert await dump_server(c, server_id) == before
            assert len(await list_snapshots(c)) == 1
            action = await newest_action(c, server_id, as_="member")
            assert (action["action"], action["message"]) == ("unshelve", "Error")
            (event,) = action["events"]
            assert (event["event"], event["result"]) == ("choose host", "Error")
            assert event["details"].startswith("No valid host was found")
            assert shown["fault"]["message"] == event["details"]
            shown = await run_move(c, server_id, "unshelve", None, as_="member")
            assert (shown["status"], shown[HOST], shown[PIN]) == ("ACTIVE", IN_AZ1, AZ1)

    run(scenario())


def test_pin_is_kept_if_the_host_fails_to_build(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **CLOUD) as c:
            server_id = await offloaded(c, AZ1)
            before = await dump_server(c, server_id)
            with rules(c) as sim:
                sim.add_failure(IN_AZ2, "spawn", "error", None, "the disk is on fire")
            for body in ({"host": IN_AZ2, "availability_zone": None}, {"availability_zone": AZ2}):
                shown = await run_move(c, server_id, "unshelve", body, as_="project-admin")
                assert (shown["status"], shown[PIN]) == ("SHELVED_OFFLOADED", AZ1)
                assert "Tried before: 1 refused by the hypervisor" in shown["fault"]["message"]
                assert await dump_server(c, server_id) == before

    run(scenario())


def test_pin_removed_during_unshelve_stays_removed(database_url: str) -> None:
    """A request without a zone does not write the pin."""

    async def scenario() -> None:
        async with full_cloud(database_url, **CLOUD) as c:
            server_id = await offloaded(c, AZ1)
            with rules(c) as sim:
                sim.add_failure("*", "spawn", "hang", None, None)
                assert (await act(c, server_id, "unshelve", None)).status == 202
                await wait_for_fields(c, server_id, OS_EXT_STS__task_state="spawning")
                change = {"server": {PIN: None}}
                assert (await c.put(f"/servers/{server_id}", change, version="2.104")).status == 200
                sim.clear()
            shown = await c.wait_until_settled(server_id)
            assert (shown["status"], shown[HOST], shown[PIN]) == ("ACTIVE", IN_AZ1, None)

    run(scenario())


def test_requested_host_is_not_stored(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **CLOUD) as c:
            server_id = await offloaded(c)
            assert (await run_move(c, server_id, "unshelve", {"host": IN_AZ1}))[HOST] == IN_AZ1
            await run_move(c, server_id, "shelve", None)
            await fill(c, IN_AZ1)
            assert (await run_move(c, server_id, "unshelve", None))[HOST] == IN_AZ2

    run(scenario())


def test_earlier_versions(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, **CLOUD) as c:
            server_id = await offloaded(c, AZ1)
            unknown: dict[str, list[Any]] = {
                "2.90": [{"host": IN_AZ1}, {"availability_zone": None}, {"availability_zone": AZ1, "host": IN_AZ1}],
                "2.77": [{}],
            }
            for version, bodies in unknown.items():
                for body in bodies:
                    answer = await act(c, server_id, "unshelve", body, as_="admin", version=version)
                    assert answer.status == 400, (version, body)
            # Before 2.77 the body is ignored: the server stays in its zone.
            shown = await run_move(c, server_id, "unshelve", {"availability_zone": AZ2}, version="2.76")
            assert (shown["status"], shown[HOST], shown[PIN]) == ("ACTIVE", IN_AZ1, AZ1)
            await run_move(c, server_id, "shelve", None)
            shown = await run_move(c, server_id, "unshelve", {"availability_zone": AZ2}, version="2.77")
            assert (shown["status"], shown[HOST], shown[PIN]) == ("ACTIVE", IN_AZ2, AZ2)

    run(scenario())
