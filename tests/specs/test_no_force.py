"""No force from 2.68 on: live migration and evacuation go only where the scheduler lets them, and force what is simple.

See docs/specs/no-force.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from kilonova.hosts.drivers.sim.shapes import Nested, Shape, Shapes, Sharing
from kilonova.scheduler.explain import of_one
from tests.compute.operations.test_silence import all_done
from tests.compute.placements.support import assign, attempts
from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.moves import (
    HOST,
    disable,
    everything,
    find_again,
    force_down,
    lose,
    migration,
    moved,
    newest_action,
    refused,
)
from tests.compute.servers.support import act, make_flavor
from tests.support import run
from tests.support.cloud import OTHER
from tests.support.whole import WATCHFUL, Whole, whole

SOURCE, GIVEN = "sim-001", "sim-002"
QUICK: dict[str, Any] = {"operations__host_seconds": 0.3}


@dataclass(frozen=True)
class Move:
    """One of the two actions. `begins` is the version that took `force` first."""

    action: str
    begins: str
    before: str
    more: tuple[tuple[str, Any], ...] = ()

    def body(self, **keys: Any) -> dict[str, Any]:
        return {**dict(self.more), **keys}

    async def ready(self, c: Whole, host: str) -> None:
        """What must be so that a server can leave the host in this way."""
        if self.action == "evacuate":
            await force_down(c, host)


EVACUATE = Move("evacuate", "2.29", "2.28")
LIVE = Move("os-migrateLive", "2.30", "2.29", (("host", None), ("block_migration", "auto")))
MOVES = pytest.mark.parametrize("move", [EVACUATE, LIVE], ids=lambda move: move.action)


async def server_on(c: Whole, host: str, **keys: Any) -> dict[str, Any]:
    """A member's server, pinned as asked, whom an administrator has put there."""
    zone = keys.pop("zone", "")
    return await c.active(as_="project-admin", availability_zone=f"{zone}:{host}", **keys)


# From 2.68 there is no force


@MOVES
@pytest.mark.parametrize("version", ["2.68", "2.95", "latest"])
def test_any_force_is_refused(sqlite_url: str, move: Move, version: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            for force in (True, False, "true", "False", None, 1, {}):
                for named in ({"host": GIVEN}, {}):
                    body = move.body(force=force, **named)
                    code, message = await refused(c, server["id"], move.action, body, version=version)
                    assert (code, "force" in message) == (400, True), body

    run(scenario())


# Destinations that the scheduler does not let have the server


async def _disabled(c: Whole) -> None:
    await disable(c, GIVEN)


async def _forced_down(c: Whole) -> None:
    await force_down(c, GIVEN)


async def _down(c: Whole) -> None:
    """Nobody has heard of it for long, although it would answer."""
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE services SET last_seen_at = 0 WHERE host = $1", GIVEN)


async def _full(c: Whole) -> None:
    await make_flavor(c, "filling", ram=15800)
    await server_on(c, GIVEN, flavorRef="filling")


async def _isolated(c: Whole) -> None:
    await assign(c.db, [GIVEN], "filter_tenant_id", OTHER)


async def _elsewhere(c: Whole) -> None:
    """With two zones the second host is in the other one."""


UNFIT: dict[str, tuple[Callable[[Whole], Awaitable[None]], str]] = {
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
def test_a_destination_that_does_not_fit_is_refused(database_url: str, move: Move, unfit: str, asked: str) -> None:
    spoil, words = UNFIT[unfit]
    version, more = ("2.67", {"force": False}) if "2.67" in asked else (asked, {})

    async def scenario() -> None:
        async with whole(database_url, hosts=3, zones=("az1", "az2"), **WATCHFUL) as c:
            server = await server_on(c, SOURCE, zone="az1" if unfit == "other zone" else "")
            await spoil(c)
            await move.ready(c, SOURCE)
            before = await everything(c, server["id"])
            body = move.body(host=GIVEN, **more)
            shown = await moved(c, server["id"], move.action, body, version=version)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", SOURCE)
            assert await everything(c, server["id"]) == before, "nothing is leaked"
            assert shown["fault"]["message"].startswith("No valid host was found: ")
            assert words in shown["fault"]["message"]
            told = await migration(c, server["id"])
            assert (told["status"], told["from"], told["to"]) == ("failed", SOURCE, None)
            assert words in told["why"]
            action = await newest_action(c, server["id"])
            assert action["message"] == "Error"
            assert words in reason(action)
            (newest, *_) = await attempts(c, server["id"], as_="admin")
            assert not newest["placed"]
            (said,) = [one["reason"] for one in newest["rejections"] if one["host"] == GIVEN]
            assert of_one(said) == words

    run(scenario())


@MOVES
def test_one_that_fits_gets_it(database_url: str, move: Move) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            shown = await moved(c, server["id"], move.action, move.body(host=GIVEN), version="2.68")
            assert (shown["status"], shown[HOST]) == ("ACTIVE", GIVEN)

    run(scenario())


# Before 2.68


def forced(move: Move, version: str) -> dict[str, Any]:
    """Older versions than those that took `force` always meant it."""
    return move.body(host=GIVEN) if version == move.before else move.body(host=GIVEN, force=True)


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
def test_force_goes_past_the_filters(database_url: str, move: Move, version: str, unfit: str) -> None:
    spoil, _ = UNFIT[unfit]

    async def scenario() -> None:
        async with whole(database_url, hosts=3, zones=("az1", "az2"), **WATCHFUL) as c:
            server = await server_on(c, SOURCE, zone="az1")
            held = await shares(c, server["id"])
            await spoil(c)
            await move.ready(c, SOURCE)
            shown = await moved(c, server["id"], move.action, forced(move, version), version=version)
            assert (shown["status"], shown[HOST]) == ("ACTIVE", GIVEN)
            assert held.keys() == {SOURCE}
            assert await shares(c, server["id"]) == {GIVEN: held[SOURCE]}, "a copy of what it had"
            await all_done(c)
            assert await c.guests() == {server["id"]: (GIVEN, "running")}
            assert await c.db.fetch_value("SELECT COUNT(*) FROM consumers") == 1

    run(scenario())


async def shares(c: Whole, consumer: str) -> dict[str, dict[str, int]]:
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
def test_force_makes_no_room(database_url: str, move: Move, version: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            server = await server_on(c, SOURCE)
            await _full(c)
            await move.ready(c, SOURCE)
            before = await everything(c, server["id"])
            message = await failed(c, server["id"], move, version)
            assert "lacks 512 MB memory" in message
            assert await everything(c, server["id"]) == before

    run(scenario())


async def failed(c: Whole, server_id: str, move: Move, version: str) -> str:
    """Why the forced move came to nothing. Live migrations below 2.34 are told so at once."""
    if move is LIVE and version in ("2.29", "2.30"):
        code, message = await refused(c, server_id, move.action, forced(move, version), version=version)
        assert code == 400
        return message
    shown = await moved(c, server_id, move.action, forced(move, version), version=version)
    assert (shown["status"], shown[HOST]) == ("ACTIVE", SOURCE)
    assert (await migration(c, server_id))["status"] == "failed"
    action = await newest_action(c, server_id)
    assert action["message"] == "Error"
    message = str(shown["fault"]["message"])
    assert message == (await migration(c, server_id))["why"] == reason(action)
    return message


def reason(action: dict[str, Any]) -> str:
    """What the event of the step that failed says; before it others may have led to another try."""
    told = [event for event in action["events"] if event["result"] == "Error"]
    return str(max(told, key=lambda event: str(event["finish_time"]))["details"])


@MOVES
def test_force_needs_a_host(sqlite_url: str, move: Move) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            for version in (move.begins, "2.67"):
                for force in (True, "on"):
                    code, message = await refused(c, server["id"], move.action, move.body(force=force), version=version)
                    assert (code, message) == (400, "Can't force to a non-provided destination")
            code, message = await refused(
                c, server["id"], move.action, move.body(force="perhaps", host=GIVEN), version="2.67"
            )
            assert (code, "force" in message) == (400, True)
            code, message = await refused(
                c, server["id"], move.action, move.body(force=True, host=GIVEN), version=move.before
            )
            assert (code, "force" in message) == (400, True)
            shown = await moved(c, server["id"], move.action, move.body(force=False), version="2.67")
            assert shown[HOST] == GIVEN

    run(scenario())


@MOVES
def test_nobody_can_say_unverified(sqlite_url: str, move: Move) -> None:
    """It is what handlers read, and no version takes it."""

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            for version in (move.before, move.begins, "2.67", "2.68", "latest"):
                code, message = await refused(
                    c, server["id"], move.action, move.body(host=GIVEN, unverified=True), version=version
                )
                assert (code, "unverified" in message) == (400, True)

    run(scenario())


@MOVES
def test_a_forced_destination_that_does_not_answer(database_url: str, move: Move) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3, **QUICK) as c:
            server = await server_on(c, SOURCE)
            await move.ready(c, SOURCE)
            before = await everything(c, server["id"])
            await lose(c, GIVEN)
            await failed(c, server["id"], move, "2.67")
            await find_again(c, GIVEN)
            await all_done(c)
            assert await everything(c, server["id"]) == before

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
    """Hosts of these shapes; what the server asks for; where the complexity is."""

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
def test_what_is_complex_is_not_forced(database_url: str, move: Move, version: str, case: str) -> None:
    which = COMPLEX[case]

    async def scenario() -> None:
        async with whole(database_url, hosts=2, shapes=shapes(which)) as c:
            server = await server_of_case(c, which)
            await move.ready(c, SOURCE)
            before = await everything(c, server["id"])
            message = await failed(c, server["id"], move, version)
            assert message == f"No valid host was found: 1 host: {WORDS[which.at]}"
            assert await everything(c, server["id"]) == before
            tried = await act(
                c, server["id"], move.action, forced(move, version), as_="admin", version=version, headers=DRY
            )
            assert tried.json()["plan"]["plans"][0]["message"] == message

    run(scenario())


async def server_of_case(c: Whole, which: Complex) -> dict[str, Any]:
    await make_flavor(c, "asking")
    if which.specs:
        answer = await c.post("/flavors/asking/os-extra_specs", {"extra_specs": dict(which.specs)}, as_="admin")
        assert answer.status == 200, answer.body
    return await server_on(c, SOURCE, flavorRef="asking")


@MOVES
@pytest.mark.parametrize("case", COMPLEX)
def test_the_scheduler_can_do_what_force_cannot(sqlite_url: str, move: Move, case: str) -> None:
    which = COMPLEX[case]

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=2, shapes=shapes(which)) as c:
            server = await server_of_case(c, which)
            await move.ready(c, SOURCE)
            shown = await moved(c, server["id"], move.action, move.body(host=GIVEN), version="2.68")
            assert (shown["status"], shown[HOST]) == ("ACTIVE", GIVEN)
            held = await shares(c, server["id"])
            assert all(name.startswith((GIVEN, "storage")) for name in held)
            assert sum(amounts.get("VCPU", 0) for amounts in held.values()) == 1
            await all_done(c)
            assert await c.guests() == {server["id"]: (GIVEN, "running")}
            assert await c.db.fetch_value("SELECT COUNT(*) FROM consumers") == 1

    run(scenario())


def test_administrators_are_told_what_is_complex(database_url: str) -> None:
    which = COMPLEX["several providers, one nested"]

    async def scenario() -> None:
        async with whole(database_url, hosts=2, shapes=shapes(which)) as c:
            server = await server_of_case(c, which)
            await failed(c, server["id"], LIVE, "2.67")
            (newest, *_) = await attempts(c, server["id"], as_="admin")
            (rejection,) = newest["rejections"]
            assert rejection["host"] == GIVEN
            assert rejection["need"] == "an allocation of the source's root provider alone"
            assert "DISK_GB of sim-001" in rejection["have"]
            assert "MEMORY_MB, VCPU of sim-001_NUMA" in rejection["have"]
            (newest, *_) = await attempts(c, server["id"])
            assert "rejections" not in newest

    run(scenario())
