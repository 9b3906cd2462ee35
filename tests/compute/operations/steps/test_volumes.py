"""Volumes of moving servers with unreachable hosts, refusals of the volume service and deleted volumes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from typing import Any

import pytest

from kilonova.compute import host_calls
from kilonova.compute.operations import live_migrate
from kilonova.compute.operations.live_migrate import LiveMigrate
from kilonova.compute.operations.resize import Migrate
from kilonova.compute.periodic import offload_shelved
from kilonova.doctor import examine
from kilonova.doctor.volumes import read_built_in
from kilonova.operations import Failed, Operation, TransientError
from kilonova.operations.definition import StepTable
from kilonova.volume.client import VolumeError
from tests.compute.operations.support import SHORT_HOST_TIMEOUT, finish_operations
from tests.compute.servers.support import act, rules, unreachable_after
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud

HOST = "OS-EXT-SRV-ATTR:host"
LIVE = {"host": None, "block_migration": False}


async def create_volume(c: FullCloud, name: str = "data") -> str:
    body = {"volume": {"size": 1, "name": name}}
    answer = await c.post("/volumes", body, root="/volume/v3")
    assert answer.status == 202, answer.body
    volume_id: str = answer.json()["volume"]["id"]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while await c.db.fetch_value("SELECT status FROM volumes WHERE id = $1", volume_id) != "available":
            await asyncio.sleep(0.005)
    return volume_id


@asynccontextmanager
async def server_with_volumes(
    url: str, hosts: int = 2, **flags: Any
) -> AsyncIterator[tuple[FullCloud, dict[str, Any]]]:
    """A cloud with a server that has a root volume and a data volume."""
    async with full_cloud(url, hosts=hosts, **SHORT_HOST_TIMEOUT, **flags) as c:
        data = await create_volume(c)
        root = {"boot_index": 0, "source_type": "image", "uuid": c.image_id, "destination_type": "volume"}
        more = {"boot_index": -1, "source_type": "volume", "uuid": data, "destination_type": "volume"}
        devices = [{**root, "volume_size": 1, "delete_on_termination": True}, more]
        server = {"name": "v", "flavorRef": "1", "networks": "auto", "block_device_mapping_v2": devices}
        answer = await c.post("/servers", {"server": server}, version="2.96")
        assert answer.status == 202, answer.body
        shown = await c.wait_until_settled(answer.json()["server"]["id"])
        assert shown["status"] == "ACTIVE", shown
        yield c, shown


async def run_action(c: FullCloud, server: dict[str, Any], action: str, body: Any = None) -> dict[str, Any]:
    answer = await act(c, server["id"], action, body, as_="admin", version="2.96")
    assert answer.status in (200, 202), answer.body
    return await c.wait_until_settled(server["id"])


async def check_host(c: FullCloud, server: dict[str, Any], host: str | None, count: int = 2) -> None:
    """After all operations, the server and its volumes are on this host, and the doctor finds nothing."""
    await finish_operations(c)
    shown = await c.show(server["id"])
    assert shown[HOST] == host
    rows = await c.db.fetch("SELECT volume_id, status, host FROM volume_attachments ORDER BY volume_id")
    expected = {"status": "attached" if host else "reserved", "host": host}
    volume_ids = sorted(one["id"] for one in shown["os-extended-volumes:volumes_attached"])
    assert rows == [{"volume_id": volume_id, **expected} for volume_id in volume_ids]
    assert len(rows) == count
    async with c.db.transaction() as tx:
        await tx.execute("UPDATE operations SET finished_at = 1 WHERE finished_at IS NOT NULL")
    assert await examine(c.db, await c.list_guests_and_slots(), partial(read_built_in, c.db)) == []


def test_failed_migrate_returns_volumes_to_unreachable_source(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_volumes(database_url) as (c, server):
            with rules(c) as sim:
                # The source stops responding after it has parked the guest.
                sim.add_failure("*", "receive", "error", None, None)
                steps = ("unpark", "power_on", "look_connector")
                numbers = [sim.add_failure(server[HOST], step, "unreachable", None, None) for step in steps]
                async with unreachable_after(sim, server[HOST], *numbers):
                    shown = await run_action(c, server, "migrate")
                assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
                found = await c.db.fetch("SELECT DISTINCT status, host FROM volume_attachments")
                assert found == [{"status": "attached", "host": server[HOST]}]
                assert [host for host, guest in await c.list_guests_and_slots() if guest.slot] == [server[HOST]]
                sim.clear()
            await check_host(c, server, server[HOST])

    run(scenario())


def test_undo_of_migrate_ignores_deleted_volume(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with server_with_volumes(sqlite_url) as (c, server):
            with rules(c) as sim:
                sim.add_failure("*", "receive", "hang", None, None)
                answer = await act(c, server["id"], "migrate", None, as_="admin", version="2.96")
                assert answer.status == 202
                await wait_for_step(c, "build guest")
                async with c.db.transaction() as tx:  # as an administrator's forced delete does
                    await tx.execute("DELETE FROM volumes WHERE name = 'data'")
                sim.clear()
                sim.add_failure("*", "receive", "error", None, None)
                assert (await c.wait_until_settled(server["id"]))["status"] == "ACTIVE"
            await finish_operations(c)
            found = await c.db.fetch("SELECT status, host FROM volume_attachments")
            assert found == [{"status": "attached", "host": server[HOST]}]
            assert await c.guests() == {server["id"]: (server[HOST], "running")}

    run(scenario())


async def wait_for_step(c: FullCloud, step: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await c.db.fetch_value("SELECT 1 FROM operations WHERE step = $1 AND finished_at IS NULL", step):
            await asyncio.sleep(0.005)


def test_undo_of_migrate_tolerates_refused_attachment(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor reports the attachment, and the next move repairs it."""
    monkeypatch.setattr(host_calls, "MAX_REFUSALS", 1)

    async def scenario() -> None:
        async with server_with_volumes(sqlite_url) as (c, server):
            create, refuses = c.services.volume.create_attachment, False

            async def refusing(*args: Any, **more: Any) -> Any:
                if refuses:
                    raise VolumeError(400, "injected by the test")
                return await create(*args, **more)

            monkeypatch.setattr(c.services.volume, "create_attachment", refusing)
            with rules(c) as sim:
                sim.add_failure("*", "receive", "hang", None, None)
                assert (await act(c, server["id"], "migrate", None, as_="admin", version="2.96")).status == 202
                await wait_for_step(c, "build guest")
                refuses = True
                sim.clear()
                sim.add_failure("*", "receive", "error", None, None)
                shown = await c.wait_until_settled(server["id"])
                assert (shown["status"], shown[HOST]) == ("ACTIVE", server[HOST])
                sim.clear()
            refuses = False
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE operations SET finished_at = 1 WHERE finished_at IS NOT NULL")
            found = await examine(c.db, await c.list_guests_and_slots(), partial(read_built_in, c.db))
            assert {finding.kind for finding in found} == {"attachment on the wrong host", "volume stuck"}
            shown = await run_action(c, server, "migrate")
            await check_host(c, server, shown[HOST])

    run(scenario())


def test_move_waits_for_busy_volume(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with server_with_volumes(sqlite_url) as (c, server):
            sql = "UPDATE volumes SET status = $1 WHERE name = 'data'"
            async with c.db.transaction() as tx:
                await tx.execute(sql, "extending")
            assert (await act(c, server["id"], "migrate", None, as_="admin", version="2.96")).status == 202
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await c.db.fetch_value(
                    "SELECT 1 FROM operations WHERE step = 'move volumes' AND attempt > 1"
                ):
                    await asyncio.sleep(0.005)
            async with c.db.transaction() as tx:
                await tx.execute(sql, "in-use")
            shown = await c.wait_until_settled(server["id"])
            assert shown["status"] == "VERIFY_RESIZE"
            await check_host(c, server, shown[HOST])

    run(scenario())


def test_revert_resize_keeps_volume_changes(sqlite_url: str) -> None:
    """Volumes were attached and detached before the revert."""

    async def scenario() -> None:
        async with server_with_volumes(sqlite_url) as (c, server):
            moved = await run_action(c, server, "migrate")
            assert moved["status"] == "VERIFY_RESIZE"
            old = await c.db.fetch_value("SELECT id FROM volumes WHERE name = 'data'")
            path = f"/servers/{server['id']}/os-volume_attachments"
            for name in ("one", "two"):
                volume_id = await create_volume(c, name)
                answer = await c.post(path, {"volumeAttachment": {"volumeId": volume_id}})
                assert answer.status == 200, answer.body
                await finish_operations(c)
            assert (await c.delete(f"{path}/{old}")).status == 202
            await finish_operations(c)
            await check_host(c, server, moved[HOST], count=3)
            assert (await run_action(c, server, "revertResize"))["status"] == "ACTIVE"
            await check_host(c, server, server[HOST], count=3)

    run(scenario())


def test_periodic_task_retries_failed_offload(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with server_with_volumes(sqlite_url, compute__shelved_offload_seconds=-1) as (c, server):
            with rules(c) as sim:
                sim.add_failure("*", "destroy", "error", None, None)
                assert (await run_action(c, server, "shelve"))["status"] == "SHELVED"
                sim.clear()
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE operations SET finished_at = 1 WHERE finished_at IS NOT NULL")
            await offload_shelved.run(c.services)
            assert (await c.wait_until_settled(server["id"]))["status"] == "SHELVED_OFFLOADED"
            await check_host(c, server, None)

    run(scenario())


def test_rebuild_works_after_host_was_unreachable(sqlite_url: str) -> None:
    """The guest that the host may have built belongs to the server, and stays stopped until the next rebuild."""

    async def scenario() -> None:
        async with server_with_volumes(sqlite_url) as (c, server):
            with rules(c) as sim:
                sim.add_failure(server[HOST], "spawn", "unreachable", None, None)
                answer = await act(c, server["id"], "rebuild", {"imageRef": c.image_id}, version="2.96")
                assert answer.status == 202, answer.body
                await wait_for_step(c, "build guest")
                # A host that answers any of these verbs would be called again.
                for step in ("destroy", "power_off", "describe"):
                    sim.add_failure(server[HOST], step, "unreachable", None, None)
                assert (await c.wait_until_settled(server["id"]))["status"] == "ERROR"
                sim.clear()
            await finish_operations(c)
            assert await c.list_slots() == []
            answer = await act(c, server["id"], "rebuild", {"imageRef": c.image_id}, version="2.96")
            assert answer.status == 202, answer.body
            assert (await c.wait_until_settled(server["id"]))["status"] == "ACTIVE"
            await check_host(c, server, server[HOST])

    run(scenario())


# Undo of a live migration


@pytest.mark.parametrize(
    "failure", ["none", "source unreachable", "destination unreachable", "refused", "fails", "timeout"]
)
@pytest.mark.parametrize("after", ["migrate guest", "adopt volumes"])
def test_failed_live_migration_leaves_volumes_with_guest(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, failure: str, after: str
) -> None:
    monkeypatch.setattr(live_migrate, "PROGRESS_SECONDS", 0.03)
    step = next(step for step in LiveMigrate.table().steps if step.name == after)

    async def scenario() -> None:
        async with server_with_volumes(sqlite_url) as (c, server):
            source = server[HOST]
            (destination,) = set(c.hosts.names) - {source}
            with rules(c) as sim:

                async def failing(op: Operation) -> None:
                    await step.action(op)  # type: ignore[union-attr]
                    match failure:
                        case "source unreachable":
                            sim.add_failure(source, "*", "unreachable", None, None)
                        case "destination unreachable":
                            sim.add_failure(destination, "*", "unreachable", None, None)
                        case "refused":
                            sim.add_failure(source, "expect", "error", None, None)
                        case "fails":
                            sim.add_failure(destination, "migrate_live", "error", None, None)
                        case "timeout":
                            sim.set_latency(destination, "migrate_live", 300)
                            c.services.config.compute.live_migration_seconds_per_gib = 1.0
                    raise Failed("injected by the test")

                replace_step(monkeypatch, LiveMigrate, after, failing)
                shown = await run_action(c, server, "os-migrateLive", LIVE)
                assert shown["status"] == "ACTIVE"
                sim.clear()
            await check_host(c, server, source if failure == "none" else destination)

    run(scenario())


@pytest.mark.parametrize("unreachable", [False, True])
def test_undo_discards_prepared_return(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, unreachable: bool) -> None:
    """A worker dies when the source expects the guest again. The next worker finds that the guest cannot return."""
    monkeypatch.setattr(live_migrate, "PROGRESS_SECONDS", 0.03)
    migrate = live_migrate._migrate

    async def scenario() -> None:
        async with server_with_volumes(sqlite_url) as (c, server):
            with rules(c) as sim:

                async def failing(op: Operation) -> None:
                    await live_migrate.adopt_volumes(op)
                    raise Failed("injected by the test")

                async def dying(op: Operation, step: str, here: str, there: str) -> None:
                    if step != live_migrate.UNDO:
                        return await migrate(op, step, here, there)
                    mode: Any = "unreachable" if unreachable else "error"
                    sim.add_failure(server[HOST], "*" if unreachable else "look_connector", mode, None, None)
                    raise TransientError("killed")

                replace_step(monkeypatch, LiveMigrate, "adopt volumes", failing)
                monkeypatch.setattr(live_migrate, "_migrate", dying)
                shown = await run_action(c, server, "os-migrateLive", LIVE)
                assert shown[HOST] != server[HOST]
                sim.clear()
            await check_host(c, server, shown[HOST])

    run(scenario())


def replace_step(monkeypatch: pytest.MonkeyPatch, operation: type[Operation], name: str, action: Any) -> None:
    """Replace the action of a step."""
    table = operation.table()
    steps = {step.name: copy(step) for step in table.steps}
    steps[name].action = action  # type: ignore[union-attr]
    monkeypatch.setattr(operation, "_table", StepTable(operation.__name__, tuple(steps.values()), ()))


# Workers that die between two calls of the volume service


@pytest.mark.parametrize("lost_response", ["create_attachment", "update_attachment", "delete_attachment"])
@pytest.mark.parametrize("operation, step", [(Migrate, "move volumes"), (LiveMigrate, "standby volumes")])
def test_move_continues_after_lost_response_of_volume_service(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, operation: type[Operation], step: str, lost_response: str
) -> None:
    monkeypatch.setattr(live_migrate, "PROGRESS_SECONDS", 0.03)

    async def scenario() -> None:
        async with server_with_volumes(sqlite_url) as (c, server):
            real, losses = getattr(c.services.volume, lost_response), 0

            async def dying(*args: Any, **more: Any) -> Any:
                nonlocal losses
                answer = await real(*args, **more)
                if losses < 2:
                    losses += 1
                    raise TransientError("the response is lost")
                return answer

            monkeypatch.setattr(c.services.volume, lost_response, dying)
            action, body = ("migrate", None) if operation is Migrate else ("os-migrateLive", LIVE)
            shown = await run_action(c, server, action, body)
            assert shown[HOST] != server[HOST], shown.get("fault")
            await check_host(c, server, shown[HOST])

    run(scenario())
