"""Volumes of servers on the move when hosts are silent, the volume service refuses, or volumes are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kilonova.compute.duties import offload_shelved
from kilonova.compute.operations import leftovers, live_migrate
from kilonova.compute.operations.live_migrate import LiveMigrate
from kilonova.compute.operations.resize import Migrate
from kilonova.doctor import examine
from kilonova.doctor.volumes import built_in
from kilonova.operations import Failed, Operation, Passing
from kilonova.operations.table import Table
from kilonova.volume.client import VolumeError
from tests.compute.operations.test_silence import QUICK, all_done
from tests.compute.servers.support import act, rules, silent_from
from tests.support import run
from tests.support.whole import PATIENCE, Whole, whole

HOST = "OS-EXT-SRV-ATTR:host"
LIVE = {"host": None, "block_migration": False}


async def data_volume(c: Whole, name: str = "data") -> str:
    body = {"volume": {"size": 1, "name": name}}
    answer = await c.post("/volumes", body, root="/volume/v3")
    assert answer.status == 202, answer.body
    volume_id: str = answer.json()["volume"]["id"]
    async with asyncio.timeout(PATIENCE):
        while await c.db.fetch_value("SELECT status FROM volumes WHERE id = $1", volume_id) != "available":
            await asyncio.sleep(0.005)
    return volume_id


@asynccontextmanager
async def moving(url: str, hosts: int = 2, **flags: Any) -> AsyncIterator[tuple[Whole, dict[str, Any]]]:
    """A cloud with a server that boots from a volume and has another one."""
    async with whole(url, hosts=hosts, **QUICK, **flags) as c:
        data = await data_volume(c)
        root = {"boot_index": 0, "source_type": "image", "uuid": c.image_id, "destination_type": "volume"}
        more = {"boot_index": -1, "source_type": "volume", "uuid": data, "destination_type": "volume"}
        devices = [{**root, "volume_size": 1, "delete_on_termination": True}, more]
        server = {"name": "v", "flavorRef": "1", "networks": "auto", "block_device_mapping_v2": devices}
        answer = await c.post("/servers", {"server": server}, version="2.96")
        assert answer.status == 202, answer.body
        shown = await c.settled(answer.json()["server"]["id"])
        assert shown["status"] == "ACTIVE", shown
        yield c, shown


async def ask(c: Whole, server: dict[str, Any], action: str, body: Any = None) -> dict[str, Any]:
    answer = await act(c, server["id"], action, body, as_="admin", version="2.96")
    assert answer.status in (200, 202), answer.body
    return await c.settled(server["id"])


async def is_at(c: Whole, server: dict[str, Any], host: str | None, count: int = 2) -> None:
    """All of the server is there, once what was left to be done is done."""
    await all_done(c)
    shown = await c.show(server["id"])
    assert shown[HOST] == host
    rows = await c.db.fetch("SELECT volume_id, status, host FROM volume_attachments ORDER BY volume_id")
    expected = {"status": "attached" if host else "reserved", "host": host}
    names = sorted(one["id"] for one in shown["os-extended-volumes:volumes_attached"])
    assert rows == [{"volume_id": name, **expected} for name in names]
    assert len(rows) == count
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE operations SET finished_at = 1 WHERE finished_at IS NOT NULL")
    assert await examine(c.db, await c.everything(), partial(built_in, c.db)) == []


def test_volumes_go_back_to_a_source_that_is_silent(database_url: str) -> None:
    async def scenario() -> None:
        async with moving(database_url) as (c, server):
            with rules(c) as sim:
                # It falls silent when its guest is put aside.
                sim.add_failure("*", "receive", "error", None, None)
                steps = ("unpark", "power_on", "look_connector")
                asked = [sim.add_failure(server[HOST], step, "unreachable", None, None) for step in steps]
                async with silent_from(sim, server[HOST], *asked):
                    shown = await ask(c, server, "migrate")
                assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
                found = await c.db.fetch("SELECT DISTINCT status, host FROM volume_attachments")
                assert found == [{"status": "attached", "host": server[HOST]}]
                assert [host for host, guest in await c.everything() if guest.slot] == [server[HOST]]
                sim.clear()
            await is_at(c, server, server[HOST])

    run(scenario())


@pytest.mark.parametrize("mode", ["error", "unreachable"])
@pytest.mark.parametrize("action, body", [("migrate", None), ("os-migrateLive", LIVE)])
def test_a_destination_that_cannot_have_volumes_is_left_for_the_next(
    sqlite_url: str, action: str, body: Any, mode: Any
) -> None:
    async def scenario() -> None:
        async with moving(sqlite_url, hosts=3) as (c, server):
            others = sorted(set(c.hosts.names) - {server[HOST]})
            with rules(c) as sim:
                sim.add_failure(others[0], "look_connector", mode, None, None)
                if mode == "unreachable":
                    sim.add_failure(others[0], "describe", mode, None, None)
                shown = await ask(c, server, action, body)
                assert shown[HOST] == others[1], shown
                sim.clear()
            await is_at(c, server, others[1])

    run(scenario())


def test_an_unshelved_server_too(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with moving(sqlite_url, compute__shelved_offload_seconds=-1) as (c, server):
            await ask(c, server, "shelve")
            await is_at(c, server, None)
            with rules(c) as sim:
                sim.add_failure("sim-001", "look_connector", "error", None, None)
                assert (await ask(c, server, "unshelve"))[HOST] == "sim-002"
            await is_at(c, server, "sim-002")

    run(scenario())


def test_a_volume_that_is_gone_keeps_nothing_from_being_undone(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with moving(sqlite_url) as (c, server):
            with rules(c) as sim:
                sim.add_failure("*", "receive", "hang", None, None)
                answer = await act(c, server["id"], "migrate", None, as_="admin", version="2.96")
                assert answer.status == 202
                await at_step(c, "build guest")
                async with c.db.transaction() as tx:  # by force, as administrators can
                    await tx.execute("DELETE FROM volumes WHERE name = 'data'")
                sim.clear()
                sim.add_failure("*", "receive", "error", None, None)
                assert (await c.settled(server["id"]))["status"] == "ACTIVE"
            await all_done(c)
            found = await c.db.fetch("SELECT status, host FROM volume_attachments")
            assert found == [{"status": "attached", "host": server[HOST]}]
            assert await c.guests() == {server["id"]: (server[HOST], "running")}

    run(scenario())


async def at_step(c: Whole, step: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await c.db.fetch_value("SELECT 1 FROM operations WHERE step = $1 AND finished_at IS NULL", step):
            await asyncio.sleep(0.005)


def test_a_refusal_to_give_a_volume_back_is_not_waited_for(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor tells of it, and the next move puts it right."""
    monkeypatch.setattr(leftovers, "REFUSALS", 1)

    async def scenario() -> None:
        async with moving(sqlite_url) as (c, server):
            create, refuses = c.services.volume.create_attachment, False

            async def refusing(*args: Any, **more: Any) -> Any:
                if refuses:
                    raise VolumeError(400, "it shall not be")
                return await create(*args, **more)

            monkeypatch.setattr(c.services.volume, "create_attachment", refusing)
            with rules(c) as sim:
                sim.add_failure("*", "receive", "hang", None, None)
                assert (await act(c, server["id"], "migrate", None, as_="admin", version="2.96")).status == 202
                await at_step(c, "build guest")
                refuses = True
                sim.clear()
                sim.add_failure("*", "receive", "error", None, None)
                shown = await c.settled(server["id"])
                assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
                sim.clear()
            refuses = False
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE operations SET finished_at = 1 WHERE finished_at IS NOT NULL")
            found = await examine(c.db, await c.everything(), partial(built_in, c.db))
            assert {finding.kind for finding in found} == {"attachment on the wrong host", "volume stuck"}
            shown = await ask(c, server, "migrate")
            await is_at(c, server, shown[HOST])

    run(scenario())


def test_a_move_waits_while_a_volume_is_worked_on(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with moving(sqlite_url) as (c, server):
            sql = "UPDATE volumes SET status = $1 WHERE name = 'data'"
            async with c.db.transaction() as tx:
                await tx.execute(sql, "extending")
            assert (await act(c, server["id"], "migrate", None, as_="admin", version="2.96")).status == 202
            async with asyncio.timeout(PATIENCE):
                while not await c.db.fetch_value(
                    "SELECT 1 FROM operations WHERE step = 'move volumes' AND attempt > 1"
                ):
                    await asyncio.sleep(0.005)
            async with c.db.transaction() as tx:
                await tx.execute(sql, "in-use")
            shown = await c.settled(server["id"])
            assert shown["status"] == "VERIFY_RESIZE"
            await is_at(c, server, shown[HOST])

    run(scenario())


def test_a_reverted_server_has_the_volumes_of_now(sqlite_url: str) -> None:
    """One was attached and one detached while the resize waited to be decided."""

    async def scenario() -> None:
        async with moving(sqlite_url) as (c, server):
            moved = await ask(c, server, "migrate")
            assert moved["status"] == "VERIFY_RESIZE"
            old = await c.db.fetch_value("SELECT id FROM volumes WHERE name = 'data'")
            path = f"/servers/{server['id']}/os-volume_attachments"
            for name in ("one", "two"):
                volume_id = await data_volume(c, name)
                answer = await c.post(path, {"volumeAttachment": {"volumeId": volume_id}})
                assert answer.status == 200, answer.body
                await all_done(c)
            assert (await c.delete(f"{path}/{old}")).status == 202
            await all_done(c)
            await is_at(c, server, moved[HOST], count=3)
            assert (await ask(c, server, "revertResize"))["status"] == "ACTIVE"
            await is_at(c, server, server[HOST], count=3)

    run(scenario())


def test_an_offload_that_failed_is_tried_again_whatever_time_is_configured(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with moving(sqlite_url, compute__shelved_offload_seconds=-1) as (c, server):
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "error", None, None)
                assert (await ask(c, server, "shelve"))["status"] == "SHELVED"
                sim.clear()
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE operations SET finished_at = 1 WHERE finished_at IS NOT NULL")
            await offload_shelved.run(c.services)
            assert (await c.settled(server["id"]))["status"] == "SHELVED_OFFLOADED"
            await is_at(c, server, None)

    run(scenario())


def test_a_host_that_falls_silent_while_a_volume_is_replaced_is_let_in_again(sqlite_url: str) -> None:
    """What it may have built is its server's, and stands still until somebody rebuilds that once more."""

    async def scenario() -> None:
        async with moving(sqlite_url) as (c, server):
            with rules(c) as sim:
                sim.add_failure(server[HOST], "spawn", "unreachable", None, None)
                answer = await act(c, server["id"], "rebuild", {"imageRef": c.image_id}, version="2.96")
                assert answer.status == 202, answer.body
                await at_step(c, "build guest")
                # As long as it answers anything, it is asked again.
                for step in ("destroy", "power_off", "describe"):
                    sim.add_failure(server[HOST], step, "unreachable", None, None)
                assert (await c.settled(server["id"]))["status"] == "ERROR"
                sim.clear()
            await all_done(c)
            assert await c.kept() == []
            answer = await act(c, server["id"], "rebuild", {"imageRef": c.image_id}, version="2.96")
            assert answer.status == 202, answer.body
            assert (await c.settled(server["id"]))["status"] == "ACTIVE"
            await is_at(c, server, server[HOST])

    run(scenario())


# Ways back from a live migration


@pytest.mark.parametrize("trouble", ["none", "source silent", "destination silent", "refused", "fails", "endless"])
@pytest.mark.parametrize("after", ["migrate guest", "adopt volumes"])
def test_volumes_are_where_the_guest_is(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, trouble: str, after: str
) -> None:
    monkeypatch.setattr(live_migrate, "PULSE", 0.03)
    step = next(step for step in LiveMigrate.table().steps if step.name == after)

    async def scenario() -> None:
        async with moving(sqlite_url) as (c, server):
            source = server[HOST]
            (destination,) = set(c.hosts.names) - {source}
            with rules(c) as sim:

                async def failing(op: Operation) -> None:
                    await step.action(op)  # type: ignore[union-attr]
                    match trouble:
                        case "source silent":
                            sim.add_failure(source, "*", "unreachable", None, None)
                        case "destination silent":
                            sim.add_failure(destination, "*", "unreachable", None, None)
                        case "refused":
                            sim.add_failure(source, "expect", "error", None, None)
                        case "fails":
                            sim.add_failure(destination, "migrate_live", "error", None, None)
                        case "endless":
                            sim.set_latency(destination, "migrate_live", 300)
                            c.services.config.compute.live_migration_seconds = 1.0
                    raise Failed("it shall not be")

                replaced(monkeypatch, LiveMigrate, after, failing)
                shown = await ask(c, server, "os-migrateLive", LIVE)
                assert shown["status"] == "ACTIVE"
                sim.clear()
            await is_at(c, server, source if trouble == "none" else destination)

    run(scenario())


@pytest.mark.parametrize("silent", [False, True])
def test_what_was_made_ready_for_the_way_back_is_cleared(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    """A worker dies when the source expects the guest again, and the next one finds that it cannot come."""
    monkeypatch.setattr(live_migrate, "PULSE", 0.03)
    carry = live_migrate._carry

    async def scenario() -> None:
        async with moving(sqlite_url) as (c, server):
            with rules(c) as sim:

                async def failing(op: Operation) -> None:
                    await live_migrate.adopt_volumes(op)
                    raise Failed("it shall not be")

                async def dying(op: Operation, step: str, here: str, there: str) -> None:
                    if step != live_migrate.UNDO:
                        return await carry(op, step, here, there)
                    mode: Any = "unreachable" if silent else "error"
                    sim.add_failure(server[HOST], "*" if silent else "look_connector", mode, None, None)
                    raise Passing("killed")

                replaced(monkeypatch, LiveMigrate, "adopt volumes", failing)
                monkeypatch.setattr(live_migrate, "_carry", dying)
                shown = await ask(c, server, "os-migrateLive", LIVE)
                assert shown[HOST] != server[HOST]
                sim.clear()
            await is_at(c, server, shown[HOST])

    run(scenario())


def replaced(monkeypatch: pytest.MonkeyPatch, operation: type[Operation], name: str, action: Any) -> None:
    """Let a step of the operation do something else."""
    table = operation.table()
    steps = tuple(replace(step, action=action) if step.name == name else step for step in table.steps)
    monkeypatch.setattr(operation, "_table", Table(operation.__name__, steps, ()))


# What a run that died has left at the volume service


@pytest.mark.parametrize("died_after", ["create_attachment", "update_attachment", "delete_attachment"])
@pytest.mark.parametrize("operation, step", [(Migrate, "move volumes"), (LiveMigrate, "standby volumes")])
def test_a_run_that_died_between_two_calls(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, operation: type[Operation], step: str, died_after: str
) -> None:
    monkeypatch.setattr(live_migrate, "PULSE", 0.03)

    async def scenario() -> None:
        async with moving(sqlite_url) as (c, server):
            real, deaths = getattr(c.services.volume, died_after), 0

            async def dying(*args: Any, **more: Any) -> Any:
                nonlocal deaths
                answer = await real(*args, **more)
                if deaths < 2:
                    deaths += 1
                    raise Passing("nobody hears the answer")
                return answer

            monkeypatch.setattr(c.services.volume, died_after, dying)
            action, body = ("migrate", None) if operation is Migrate else ("os-migrateLive", LIVE)
            shown = await ask(c, server, action, body)
            assert shown[HOST] != server[HOST], shown.get("fault")
            await is_at(c, server, shown[HOST])

    run(scenario())
