"""No force from 2.68 on: the scheduler verifies destinations of live migration and evacuation. Before, only simple
allocations can be forced.

See docs/specs/no-force.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from kilonova.hosts.drivers.sim.shapes import Nested, Shape, Shapes, Sharing
from kilonova.scheduler.explain import singular
from tests.compute.operations.support import finish_operations
from tests.compute.placements.support import assign, attempts
from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import (
    HOST,
    action_refusal,
    disable_host,
    dump_server,
    force_down,
    make_reachable,
    make_unreachable,
    newest_action,
    newest_migration,
    run_move,
)
from tests.compute.servers.support import act, make_flavor
from tests.support import run
from tests.support.cloud import OTHER
from tests.support.full_cloud import WITHOUT_LIVENESS_CACHE, FullCloud, full_cloud

SOURCE, DESTINATION = "sim-001", "sim-002"
QUICK: dict[str, Any] = {"operations__host_timeout_seconds": 0.3}


@dataclass(frozen=True)
class Move:
    """One of the two actions. `begins` is the first version with `force`."""

    action: str
    begins: str
    before: str
    more: tuple[tuple[str, Any], ...] = ()

    def body(self, **keys: Any) -> dict[str, Any]:
        return {**dict(self.more), **keys}

    async def ready(self, c: FullCloud, host: str) -> None:
        """Prepare the host so that the action is allowed on its servers."""
        if self.action == "evacuate":
            await force_down(c, host)


EVACUATE = Move("evacuate", "2.29", "2.28")
LIVE = Move("os-migrateLive", "2.30", "2.29", (("host", None), ("block_migration", "auto")))
MOVES = pytest.mark.parametrize("move", [EVACUATE, LIVE], ids=lambda move: move.action)


async def server_on(c: FullCloud, host: str, **keys: Any) -> dict[str, Any]:
    """A member's server that an administrator has moved to the host, with the requested pin."""
    zone = keys.pop("zone", "")
    return await c.boot_active(as_="project-admin", availability_zone=f"{zone}:{host}", **keys)


# From 2.68 there is no force


@MOVES
@pytest.mark.parametrize("version", ["2.68", "2.95", "latest"])
def test_force_is_refused_from_2_68(sqlite_url: str, move: Move, version: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            for force in (True, False, "true", "False", None, 1, {}):
                for named in ({"host": DESTINATION}, {}):
                    body = move.body(force=force, **named)
                    code, message = await action_refusal(c, server["id"], move.action, body, version=version)
                    assert (code, "force" in message) == (400, True), body

    run(scenario())


# Destinations that the scheduler refuses


async def _disabled(c: FullCloud) -> None:
    await disable_host(c, DESTINATION)


async def _forced_down(c: FullCloud) -> None:
    await force_down(c, DESTINATION)


async def _down(c: FullCloud) -> None:
    """The host has sent no report for long, although it would respond."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = 0 WHERE host = $1", DESTINATION)


async def _full(c: FullCloud) -> None:
    await make_flavor(c, "filling", ram=15800)
    await server_on(c, DESTINATION, flavorRef="filling")


async def _isolated(c: FullCloud) -> None:
    await assign(c.db, [DESTINATION], "filter_tenant_id", OTHER)


async def _elsewhere(c: FullCloud) -> None:
    """With two zones the second host is in the other one."""


UNFIT: dict[str, tuple[Callable[[FullCloud], Awaitable[None]], str]] = {
    "disabled": (_disabled, "disabled"),
    "forced down": (_forced_down, "forced down"),
    "down": (_down, "down"),
    "full": (_full, "lacks 512 MB memory"),
    "other zone": (_elsewhere, "not in zone az1"),
    "isolated": (_isolated, "reserved for other projects"),
}


@MOVES
@pytest.mark.parametrize(
    "unfit, asked", [*((unfit, "2.68") for unfit in UNFIT), ("disabled", "latest"), ("disabled", "not forced at 2.67")]
)
def test_unsuitable_destination_is_refused(database_url: str, move: Move, unfit: str, asked: str) -> None:
    spoil, words = UNFIT[unfit]
    version, more = ("2.67", {"force": False}) if "2.67" in asked else (asked, {})

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, zones=("az1", "az2"), **WITHOUT_LIVENESS_CACHE) as c:
            server = await server_on(c, SOURCE, zone="az1" if unfit == "other zone" else "")
            await spoil(c)
            await move.ready(c, SOURCE)
            before = await dump_server(c, server["id"])
            body = move.body(host=DESTINATION, **more)
            shown = await run_move(c, server["id"], move.action, body, version=version)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", SOURCE)
            assert await dump_server(c, server["id"]) == before, "nothing is leaked"
            assert shown["fault"]["message"].startswith("No valid host was found: ")
            assert words in shown["fault"]["message"]
            told = await newest_migration(c, server["id"])
            assert (told["status"], told["from"], told["to"]) == ("failed", SOURCE, None)
            assert words in told["error"]
            action = await newest_action(c, server["id"])
            assert action["message"] == "Error"
            assert words in reason(action)
            (newest, *_) = await attempts(c, server["id"], as_="admin")
            assert not newest["placed"]
            (said,) = [one["reason"] for one in newest["rejections"] if one["host"] == DESTINATION]
            assert singular(said) == words

    run(scenario())


@MOVES
def test_suitable_destination_is_used(database_url: str, move: Move) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            shown = await run_move(c, server["id"], move.action, move.body(host=DESTINATION), version="2.68")
            assert (shown["status"], shown[HOST]) == ("ACTIVE", DESTINATION)

    run(scenario())


# Before 2.68


def forced(move: Move, version: str) -> dict[str, Any]:
    """Versions before `force` always force a named host."""
    return move.body(host=DESTINATION) if version == move.before else move.body(host=DESTINATION, force=True)


VERSIONS = [(move, version) for move in (EVACUATE, LIVE) for version in (move.before, move.begins, "2.67")]
FORCED = pytest.mark.parametrize("move, version", VERSIONS, ids=lambda value: getattr(value, "action", value))


@pytest.mark.parametrize(
    "move, version, unfit",
    [
        *((move, version, "disabled") for move, version in VERSIONS),
        *((move, "2.67", unfit) for move in (EVACUATE, LIVE) for unfit in ("down", "other zone", "isolated")),
    ],
    ids=lambda value: getattr(value, "action", value),
)
def test_force_bypasses_the_filters(database_url: str, move: Move, version: str, unfit: str) -> None:
    spoil, _ = UNFIT[unfit]

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, zones=("az1", "az2"), **WITHOUT_LIVENESS_CACHE) as c:
            server = await server_on(c, SOURCE, zone="az1")
            held = await allocations(c, server["id"])
            await spoil(c)
            await move.ready(c, SOURCE)
            shown = await run_move(c, server["id"], move.action, forced(move, version), version=version)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", DESTINATION)
            assert held.keys() == {SOURCE}
            assert await allocations(c, server["id"]) == {DESTINATION: held[SOURCE]}, "a copy of what it had"
            await finish_operations(c)
            assert await c.guests() == {server["id"]: (DESTINATION, "running")}
            assert await c.db.fetch_value("SELECT COUNT(*) FROM consumers") == 1

    run(scenario())


async def allocations(c: FullCloud, consumer: str) -> dict[str, dict[str, int]]:
    rows = await c.db.fetch(
        "SELECT p.name, a.resource_class, a.used FROM allocations a JOIN resource_providers p ON p.id = a.provider_id"
        " WHERE a.consumer_uuid = $1",
        consumer,
    )
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        found.setdefault(row["name"], {})[row["resource_class"]] = row["used"]
    return found


@FORCED
def test_force_does_not_overcommit(database_url: str, move: Move, version: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3) as c:
            server = await server_on(c, SOURCE)
            await _full(c)
            await move.ready(c, SOURCE)
            before = await dump_server(c, server["id"])
            message = await failed(c, server["id"], move, version)
            assert "lacks 512 MB memory" in message
            assert await dump_server(c, server["id"]) == before

    run(scenario())


async def failed(c: FullCloud, server_id: str, move: Move, version: str) -> str:
    """The error of a forced move. Live migrations below 2.34 return it at once."""
    if move is LIVE and version in ("2.29", "2.30"):
        code, message = await action_refusal(c, server_id, move.action, forced(move, version), version=version)
        assert code == 400
        return message
    shown = await run_move(c, server_id, move.action, forced(move, version), version=version)
    assert (shown["status"], shown[HOST]) == ("ACTIVE", SOURCE)
    assert (await newest_migration(c, server_id))["status"] == "failed"
    action = await newest_action(c, server_id)
    assert action["message"] == "Error"
    message = str(shown["fault"]["message"])
    assert message == (await newest_migration(c, server_id))["error"] == reason(action)
    return message


def reason(action: dict[str, Any]) -> str:
    """The details of the last failed event; earlier ones may have led to a retry."""
    told = [event for event in action["events"] if event["result"] == "Error"]
    return str(max(told, key=lambda event: str(event["finish_time"]))["details"])


@MOVES
def test_force_needs_a_host(sqlite_url: str, move: Move) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            for version in (move.begins, "2.67"):
                for force in (True, "on"):
                    code, message = await action_refusal(
                        c, server["id"], move.action, move.body(force=force), version=version
                    )
                    assert (code, message) == (400, "Can't force to a non-provided destination")
            code, message = await action_refusal(
                c, server["id"], move.action, move.body(force="perhaps", host=DESTINATION), version="2.67"
            )
            assert (code, "force" in message) == (400, True)
            code, message = await action_refusal(
                c, server["id"], move.action, move.body(force=True, host=DESTINATION), version=move.before
            )
            assert (code, "force" in message) == (400, True)
            shown = await run_move(c, server["id"], move.action, move.body(force=False), version="2.67")
            assert shown[HOST] == DESTINATION

    run(scenario())


@MOVES
def test_clients_cannot_send_unverified(sqlite_url: str, move: Move) -> None:
    """Handlers read `unverified`, and no version accepts it from clients."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            for version in (move.before, move.begins, "2.67", "2.68", "latest"):
                code, message = await action_refusal(
                    c, server["id"], move.action, move.body(host=DESTINATION, unverified=True), version=version
                )
                assert (code, "unverified" in message) == (400, True)

    run(scenario())


@MOVES
def test_forced_destination_that_does_not_respond(database_url: str, move: Move) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=3, **QUICK) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            before = await dump_server(c, server["id"])
            await make_unreachable(c, DESTINATION)
            await failed(c, server["id"], move, "2.67")
            await make_reachable(c, DESTINATION)
            await finish_operations(c)
            assert await dump_server(c, server["id"]) == before

    run(scenario())


# Complex allocations cannot be copied

PLAIN = Shape(name="plain", inventory={"VCPU": 16, "MEMORY_MB": 16384, "DISK_GB": 100})
CELLS = Shape(
    name="cells",
    inventory={"DISK_GB": 100},
    nested=[Nested(name="NUMA", count=2, inventory={"VCPU": 8, "MEMORY_MB": 8192})],
)
ONE_CELL = Shape(
    name="one cell",
    nested=[Nested(name="CELL", inventory={"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100})],
)
DISKLESS = Shape(name="diskless", inventory={"VCPU": 16, "MEMORY_MB": 16384})
CARDS = Shape(
    name="cards",
    inventory={"VCPU": 16, "MEMORY_MB": 16384, "DISK_GB": 100},
    nested=[Nested(name="GPU", inventory={"VGPU": 4})],
)
STORAGE = Sharing(name="storage", shapes=["diskless"], inventory={"DISK_GB": 1000})


@dataclass(frozen=True)
class Complex:
    """Shapes of hosts, the server's request, and the side whose allocation is complex."""

    source: Shape
    destination: Shape
    at: str
    specs: tuple[tuple[str, str], ...] = ()


COMPLEX = {
    "several providers, one nested": Complex(CELLS, PLAIN, "source"),
    "only a nested provider": Complex(ONE_CELL, PLAIN, "source"),
    "a sharing provider": Complex(DISKLESS, PLAIN, "source"),
    "a nested provider beside the root": Complex(CARDS, CARDS, "source", (("resources:VGPU", "1"),)),
    "nested on both": Complex(CELLS, CELLS, "source"),
    "the same nested provider on both": Complex(ONE_CELL, ONE_CELL, "source"),
    "sharing on both": Complex(DISKLESS, DISKLESS, "source"),
    "nested at the destination": Complex(PLAIN, CELLS, "destination"),
    "only nested at the destination": Complex(PLAIN, ONE_CELL, "destination"),
    "sharing at the destination": Complex(PLAIN, DISKLESS, "destination"),
}
WORDS = {
    "source": "1 cannot be forced: the server's allocation is complex",
    "destination": "1 cannot be forced: the server's allocation there would be complex",
}


def shapes(case: Complex) -> Shapes:
    first, second = case.source, case.destination
    if first.name == second.name:
        return Shapes(shape=[_of(first, 2)], sharing=[STORAGE] if first is DISKLESS else [])
    return Shapes(shape=[_of(first, 1), _of(second, 1)], sharing=[STORAGE] if DISKLESS in (first, second) else [])


def _of(shape: Shape, hosts: int) -> Shape:
    return structs.replace(shape, hosts=hosts)


@pytest.mark.parametrize(
    "move, version, case",
    [
        *((move, "2.67", case) for move in (EVACUATE, LIVE) for case in COMPLEX),
        *((move, version, "nested on both") for move, version in VERSIONS if version != "2.67"),
    ],
    ids=lambda value: getattr(value, "action", value),
)
def test_complex_allocations_cannot_be_forced(database_url: str, move: Move, version: str, case: str) -> None:
    which = COMPLEX[case]

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, shapes=shapes(which)) as c:
            server = await server_of_case(c, which)
            await move.ready(c, SOURCE)
            before = await dump_server(c, server["id"])
            message = await failed(c, server["id"], move, version)
            assert message == f"No valid host was found: 1 host: {WORDS[which.at]}"
            assert await dump_server(c, server["id"]) == before
            tried = await act(
                c, server["id"], move.action, forced(move, version), as_="admin", version=version, headers=DRY
            )
            assert tried.json()["plan"]["plans"][0]["message"] == message

    run(scenario())


async def server_of_case(c: FullCloud, which: Complex) -> dict[str, Any]:
    await make_flavor(c, "asking")
    if which.specs:
        answer = await c.post("/flavors/asking/os-extra_specs", {"extra_specs": dict(which.specs)}, as_="admin")
        assert answer.status == 200, answer.body
    return await server_on(c, SOURCE, flavorRef="asking")


@MOVES
@pytest.mark.parametrize("case", COMPLEX)
def test_scheduler_moves_complex_allocations(sqlite_url: str, move: Move, case: str) -> None:
    which = COMPLEX[case]

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2, shapes=shapes(which)) as c:
            server = await server_of_case(c, which)
            await move.ready(c, SOURCE)
            shown = await run_move(c, server["id"], move.action, move.body(host=DESTINATION), version="2.68")
            assert (shown["status"], shown[HOST]) == ("ACTIVE", DESTINATION)
            held = await allocations(c, server["id"])
            assert all(name.startswith((DESTINATION, "storage")) for name in held)
            assert sum(amounts.get("VCPU", 0) for amounts in held.values()) == 1
            await finish_operations(c)
            assert await c.guests() == {server["id"]: (DESTINATION, "running")}
            assert await c.db.fetch_value("SELECT COUNT(*) FROM consumers") == 1

    run(scenario())


def test_administrators_see_what_is_complex(database_url: str) -> None:
    which = COMPLEX["several providers, one nested"]

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2, shapes=shapes(which)) as c:
            server = await server_of_case(c, which)
            await failed(c, server["id"], LIVE, "2.67")
            (newest, *_) = await attempts(c, server["id"], as_="admin")
            (rejection,) = newest["rejections"]
            assert rejection["host"] == DESTINATION
            assert rejection["need"] == "an allocation of the source's root provider alone"
            assert "DISK_GB of sim-001" in rejection["have"]
            assert "MEMORY_MB, VCPU of sim-001_NUMA" in rejection["have"]
            (newest, *_) = await attempts(c, server["id"])
            assert "rejections" not in newest

    run(scenario())
