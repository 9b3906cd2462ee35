"""Hosts that fail or fall silent while servers are resized, confirmed or reverted: everything ends, nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kilonova.compute.operations import leftovers
from kilonova.hosts.drivers.sim.rules import Rules
from tests.compute.operations.test_silence import QUICK, all_done, unfinished
from tests.compute.servers.moves import HOST, disable, everything, force_down, lose, migration, moved, newest_action
from tests.compute.servers.support import act, rules, silent_from, until
from tests.compute.servers.test_resizing import SMALL, TINY, confirm, disks, resize, resized, revert, shares
from tests.support import run
from tests.support.whole import Whole, whole

SAME: dict[str, Any] = {"hosts": 1, "compute__resize_on_same_host": True, **QUICK}


@pytest.fixture(autouse=True)
def short_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of a host behind something that hangs there is soon known to be in vain."""
    monkeypatch.setattr(leftovers, "PING", 0.3)


def others(c: Whole, host: str) -> list[str]:
    return [name for name in c.hosts.names if name != host]


@asynccontextmanager
async def silent(c: Whole, host: str, *steps: str, **modes: str) -> AsyncIterator[Rules]:
    """The host answers none of these steps, and from the first of them on no question; until the end: it is back."""
    with rules(c) as sim:
        wanted = {**dict.fromkeys(steps, "unreachable"), **modes}
        numbers = [sim.add_failure(host, step, mode, None, None) for step, mode in wanted.items()]
        async with silent_from(sim, host, *numbers):
            yield sim
        sim.clear()


async def seen(c: Whole, server_id: str) -> dict[str, Any]:
    """Everything, and which of the guests is which: flavors tell them apart. All have the same disk."""
    machines = sorted((host, state.slot, state.ram_mb, state.disk) for host, state in await c.everything())
    return {**await everything(c, server_id), "machines": machines}


async def as_before(c: Whole, server_id: str, before: dict[str, Any]) -> None:
    """Once everything that was left to be done is done."""
    await all_done(c)
    assert await seen(c, server_id) == before


@pytest.mark.parametrize("action, body", [("resize", SMALL), ("migrate", None)])
def test_a_host_that_cannot_is_left_for_the_next(database_url: str, action: str, body: Any) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3, **QUICK) as c:
            server = await c.active()
            refuses, disk = others(c, server[HOST])[0], await disks(c)
            with rules(c) as sim:
                sim.add_failure(refuses, "receive", "error", None, "no cellar")
                shown = await moved(c, server["id"], action, body)
                sim.clear()
            (lands,) = set(others(c, server[HOST])) - {refuses}
            assert (shown["status"], shown[HOST]) == ("VERIFY_RESIZE", lands)
            assert (await migration(c, server["id"]))["to"] == lands
            assert (await c.guests())[server["id"]] == (lands, "running")
            assert [host for host, _ in await c.kept()] == [server[HOST]]
            assert await disks(c) == disk
            assert {host for host, _ in (await shares(c, server["id"])).values()} == {server[HOST], lands}

    run(scenario())


def test_a_silent_host_is_left_for_the_next(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3, **QUICK) as c:
            server = await c.active()
            lost = others(c, server[HOST])[0]
            with rules(c) as sim:
                # The guest is built there in the end, but nobody hears of it.
                sim.add_failure(lost, "receive", "hang", None, None)
                for step in ("destroy", "describe"):
                    sim.add_failure(lost, step, "unreachable", None, None)
                shown = await resize(c, server["id"])
                assert (shown["status"], shown[HOST] in (lost, server[HOST])) == ("VERIFY_RESIZE", False)
                assert set(await unfinished(c)) <= {"clear guest", "clear slot"}
                sim.clear()
            await all_done(c)
            assert (await c.guests()) == {server["id"]: (shown[HOST], "running")}
            assert (await confirm(c, server["id"]))["status"] == "ACTIVE"

    run(scenario())


def test_where_no_host_can_the_server_is_as_before_and_says_why(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3) as c:
            server = await c.active()
            before = await seen(c, server["id"])
            with rules(c) as sim:
                sim.add_failure("*", "receive", "error", None, "no cellar")
                shown = await resize(c, server["id"])
                sim.clear()
            assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("ACTIVE", 1)
            assert shown["flavor"] == server["flavor"]
            reason = "No valid host was found: 3 hosts: 3 excluded. Tried before: 2 refused by the hypervisor"
            assert shown["fault"]["message"] == reason
            for host in others(c, server[HOST]):
                assert f"{host}: no cellar" in shown["fault"]["details"]
            told = await migration(c, server["id"])
            assert (told["status"], told["why"]) == ("error", reason)
            action = await newest_action(c, server["id"], as_="member")
            assert (action["action"], action["message"]) == ("resize", "Error")
            assert reason in [event["details"] for event in action["events"]]
            assert not [name for name in c.hosts.names if name in str(action)]
            await as_before(c, server["id"], before)
            assert (await resize(c, server["id"]))["status"] == "VERIFY_RESIZE"
            assert "fault" not in await c.show(server["id"])

    run(scenario())


@pytest.mark.parametrize("trouble", ["disabled", "full", "down", "refuses"])
def test_a_named_host_that_cannot_is_the_end(database_url: str, trouble: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=3, **QUICK) as c:
            server = await c.active()
            named, before = others(c, server[HOST])[0], await seen(c, server["id"])
            if trouble == "disabled":
                await disable(c, named)
            elif trouble == "full":
                async with c.db.transaction() as tx:
                    await tx.execute(
                        "UPDATE inventories SET reserved = total WHERE resource_class = 'DISK_GB' AND provider_id ="
                        " (SELECT id FROM resource_providers WHERE name = $1)",
                        named,
                    )
                    await tx.execute("UPDATE resource_providers SET generation = generation + 1")
            elif trouble == "down":
                await lose(c, named)
            with rules(c) as sim:
                if trouble == "refuses":
                    sim.add_failure(named, "receive", "error", None, None)
                shown = await moved(c, server["id"], "migrate", {"host": named})
                sim.clear()
            assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
            assert shown["fault"]["message"].startswith("No valid host was found")
            assert (await newest_action(c, server["id"]))["message"] == "Error"
            assert (await migration(c, server["id"]))["status"] == "error"
            await as_before(c, server["id"], before)

    run(scenario())


@pytest.mark.parametrize("step, left", [("power_off", ["power_on"]), ("park", ["unpark", "power_on"])])
def test_a_source_that_falls_silent(database_url: str, step: str, left: list[str]) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server = await c.active()
            before = await seen(c, server["id"])
            async with silent(c, server[HOST], step, *left):
                shown = await resize(c, server["id"])
                assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
                assert shown["fault"]["message"].endswith("did not answer for 0.3 s")
                assert set(await unfinished(c)) == {"restore guest"}
            await as_before(c, server["id"], before)

    run(scenario())


def test_a_source_that_is_silent_when_its_guest_shall_come_back(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server = await c.active()
            before = await seen(c, server["id"])
            async with silent(c, server[HOST], "unpark", "power_on") as sim:
                sim.add_failure("*", "receive", "error", None, None)
                shown = await resize(c, server["id"])
                assert shown["status"] == "ACTIVE"
                assert [host for host, _ in await c.kept()] == [server[HOST]]
                assert await c.guests() == {}
            await as_before(c, server["id"], before)

    run(scenario())


def test_what_a_silent_source_keeps_goes_with_the_server(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server = await c.active()
            async with silent(c, server[HOST], "unpark", "power_on", "destroy", "discard") as sim:
                sim.add_failure("*", "receive", "hang", None, None)
                assert (await act(c, server["id"], "resize", SMALL)).status == 202
                await until(c, server["id"], OS_EXT_STS__task_state="resize_finish")
                assert (await c.delete(f"/servers/{server['id']}")).status == 204
                await c.gone(server["id"])
                assert [host for host, _ in await c.kept()] == [server[HOST]]
            await all_done(c)
            assert await c.everything() == []
            assert await shares(c, server["id"]) == {}

    run(scenario())


@pytest.mark.parametrize("mode", ["hang", "unreachable"])
def test_a_host_that_falls_silent_on_its_own_resize(database_url: str, mode: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **SAME) as c:
            server = await c.active()
            before = await seen(c, server["id"])
            async with silent(c, server[HOST], "destroy", "unpark", "power_on", receive=mode):
                shown = await resize(c, server["id"])
                assert (shown["status"], shown["flavor"]) == ("ACTIVE", server["flavor"])
                # Nothing that would take the server's own guest away, or keep its host down for ever.
                assert set(await unfinished(c)) == {"restore guest"}
            await as_before(c, server["id"], before)

    run(scenario())


@pytest.mark.parametrize("flags", [{"hosts": 2, **QUICK}, SAME], ids=["elsewhere", "same host"])
@pytest.mark.parametrize("mode", ["hang", "unreachable", "error"])
def test_a_source_that_cannot_take_back_what_it_had(database_url: str, flags: dict[str, Any], mode: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, **flags) as c:
            server, waits = await resized(c)
            before = await seen(c, server["id"])
            with rules(c) as refusing:
                if mode == "error":
                    c.services.config.operations.host_seconds = 600.0  # it is said once, and must be heard
                    refusing.add_failure(server[HOST], "unpark", mode, 1, None)
                    shown = await revert(c, server["id"])
                else:
                    async with silent(c, server[HOST], "power_on", unpark=mode):
                        shown = await revert(c, server["id"])
            assert (shown["status"], shown[HOST], shown["flavor"]) == ("VERIFY_RESIZE", waits[HOST], waits["flavor"])
            assert shown["fault"]["message"].startswith("The host could not unpark guest")
            assert (await newest_action(c, server["id"]))["message"] == "Error"
            await as_before(c, server["id"], before)
            assert (await migration(c, server["id"]))["status"] == "finished"
            shown = await revert(c, server["id"])
            assert (shown["status"], shown["flavor"]) == ("ACTIVE", server["flavor"])
            await all_done(c)
            assert (await c.guests()) == {server["id"]: (server[HOST], "running")}
            ((_, slot, ram, disk),) = (await seen(c, server["id"]))["machines"]
            assert (slot, ram, disk) == ("", 512, before["machines"][0][3])

    run(scenario())


def test_a_server_runs_on_where_the_host_it_would_go_back_to_is_down(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server, waits = await resized(c)
            await lose(c, server[HOST])
            with rules(c) as sim:
                sim.add_failure(waits[HOST], "power_off", "error", None, None)
                shown = await revert(c, server["id"])
                assert (shown["status"], shown[HOST]) == ("VERIFY_RESIZE", waits[HOST])
                assert shown["fault"]["message"] == "The host could not unpark guest: it is down"
                sim.clear()

    run(scenario())


def test_a_destination_that_is_silent_when_it_shall_be_left(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server, waits = await resized(c)
            before = await seen(c, server["id"])
            async with silent(c, waits[HOST], "power_off", "power_on"):
                shown = await revert(c, server["id"])
                assert (shown["status"], shown[HOST]) == ("VERIFY_RESIZE", waits[HOST])
            await as_before(c, server["id"], before)

    run(scenario())


def test_a_destination_that_is_not_heard_of_may_still_run_the_guest(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server, waits = await resized(c)
            await lose(c, waits[HOST])
            shown = await revert(c, server["id"])
            assert (shown["status"], shown[HOST]) == ("VERIFY_RESIZE", waits[HOST])

    run(scenario())


def test_a_destination_that_was_given_up_does_not_keep_anybody_from_going_back(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server, waits = await resized(c)
            server_id, dead = server["id"], waits[HOST]
            await lose(c, dead)
            await force_down(c, dead)
            with rules(c) as sim:
                # Whoever cannot go back after all is where it was, with everything.
                before = await everything(c, server_id)
                sim.add_failure(server[HOST], "unpark", "error", None, None)
                assert (await revert(c, server_id))["status"] == "VERIFY_RESIZE"
                assert {**await everything(c, server_id), "left": []} == before
                sim.clear(server[HOST])
                shown = await revert(c, server_id)
                assert (shown["status"], shown[HOST], shown["flavor"]) == ("ACTIVE", server[HOST], server["flavor"])
                assert list((await shares(c, server_id)).values()) == [(server[HOST], TINY)]
                await c.heartbeat.beat()
                assert await state_of(c, dead) == "down"
                sim.clear(dead)
            await all_done(c)
            ((host, slot, ram, _),) = (await seen(c, server_id))["machines"]
            assert (host, slot, ram) == (server[HOST], "", 512)
            await force_down(c, dead, False)
            await c.heartbeat.beat()
            assert await state_of(c, dead) == "up"

    run(scenario())


async def state_of(c: Whole, host: str) -> str:
    (service,) = (await c.get(f"/os-services?host={host}", as_="admin")).json()["services"]
    state: str = service["state"]
    return state


def test_a_silent_source_does_not_keep_anybody_from_confirming(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server, waits = await resized(c)
            await lose(c, server[HOST])
            shown = await confirm(c, server["id"])
            assert (shown["status"], shown[HOST]) == ("ACTIVE", waits[HOST])
            assert list(await shares(c, server["id"])) == ["server"]
            assert await unfinished(c) == ["clear slot"]
            with rules(c) as sim:
                sim.clear()
            await all_done(c)
            assert await c.kept() == []
            assert (await c.guests())[server["id"]] == (waits[HOST], "running")

    run(scenario())


def test_a_source_that_cannot_discard_is_asked_again(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2) as c:
            server, _ = await resized(c)
            with rules(c) as sim:
                sim.add_failure(server[HOST], "discard", "error", None, "stuck")
                shown = await confirm(c, server["id"])
                assert (shown["status"], shown["fault"]["message"]) == (
                    "VERIFY_RESIZE",
                    "The host could not discard guest: refused by the hypervisor",
                )
                sim.clear()
            assert (await confirm(c, server["id"]))["status"] == "ACTIVE"
            assert await c.kept() == []

    run(scenario())


def test_what_a_revert_left_out_of_its_slot_goes_when_the_resize_is_confirmed(database_url: str) -> None:
    async def scenario() -> None:
        async with whole(database_url, hosts=2, **QUICK) as c:
            server, waits = await resized(c)
            with rules(c) as sim:
                sim.add_failure(server[HOST], "unpark", "hang", None, None)
                for step in ("power_off", "describe", "discard"):
                    sim.add_failure(server[HOST], step, "unreachable", None, None)
                assert (await revert(c, server["id"]))["status"] == "VERIFY_RESIZE"
                assert "park guest again" in await unfinished(c)
                assert (await confirm(c, server["id"]))["status"] == "ACTIVE"
                sim.clear()
            await all_done(c)
            assert [(host, state.slot) for host, state in await c.everything()] == [(waits[HOST], "")]

    run(scenario())
