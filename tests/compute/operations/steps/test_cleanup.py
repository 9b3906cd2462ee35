"""Cleanup on hosts that do not respond or refuse: it is deferred, and operations end without it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kilonova.compute import host_calls
from tests.compute.operations.support import finish_operations, unfinished_kinds
from tests.compute.servers.support import NO_RESOURCES, act, count_server_resources, rules
from tests.compute.volume_attachments.support import (
    NEWEST,
    attach,
    attachments,
    guest_volumes,
    path,
    request_attach,
    wait_until_idle,
)
from tests.support import run
from tests.support.full_cloud import TIMEOUT_SECONDS, FullCloud, full_cloud
from tests.support.volumes import make_volume, show_volume, wait_for_volume

HOST = "sim-001"
LIVE = {"host": None, "block_migration": "auto"}
# The action and its body, the verb that fails, the verb that is refused in the undo, and the deferred operation.
REFUSALS = [
    ("migrate", None, "receive", "unpark", "restore_guest"),
    ("migrate", None, "receive", "destroy", "clean_up_guest"),
    ("shelve", None, "snapshot", "power_on", "restore_guest"),
    ("os-migrateLive", LIVE, "migrate_live", "discard", "clean_up_slot"),
    ("os-migrateLive", LIVE, "migrate_live", "stop_migration", None),
    ("os-migrateLive", LIVE, "migrate_live", "guests", None),
]
EACH_REFUSAL = pytest.mark.parametrize(("action", "body", "failing", "refused", "deferred"), REFUSALS)


@contextmanager
def answer_lost(c: FullCloud, step: str) -> Iterator[None]:
    """The host runs the step, but its answer is lost, and it does not respond to other calls.

    The timeouts are short only in this block: elsewhere a reachable host may be slow.
    """
    operations = c.services.config.operations
    with rules(c) as sim, pytest.MonkeyPatch.context() as short:
        short.setattr(operations, "host_timeout_seconds", 0.3)
        short.setattr(host_calls, "PROBE_TIMEOUT_SECONDS", 0.3)
        sim.add_failure(HOST, step, "hang", None, None)
        for other in ("describe", "attach_disk", "detach_disk", "swap_disk"):
            if other != step:
                sim.add_failure(HOST, other, "unreachable", None, None)
        yield
        sim.clear()


async def fault_message(c: FullCloud, server_id: str) -> str:
    message: str = (await c.show(server_id))["fault"]["message"]
    return message


def test_failed_attach_keeps_volume_until_host_responds(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, other_id, volume_id = (
                (await c.boot_active())["id"],
                (await c.boot_active())["id"],
                await make_volume(c),
            )
            with answer_lost(c, "attach_disk"):
                assert (await request_attach(c, server_id, volume_id)).status == 202
                await wait_until_idle(c, server_id)
                assert await unfinished_kinds(c) == ["restore_disk"]
                assert "could not attach disk" in await fault_message(c, server_id)
                assert await attachments(c, server_id) == []
                assert (await show_volume(c, volume_id))["status"] == "attaching"
                assert (await request_attach(c, other_id, volume_id)).status == 400
            await finish_operations(c)
            assert (await show_volume(c, volume_id))["status"] == "available"
            assert await guest_volumes(c, server_id) == []
            await attach(c, other_id, volume_id)
            assert await guest_volumes(c, other_id) == [volume_id]

    run(scenario())


def test_failed_detach_attaches_volume_again(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            await attach(c, server_id, volume_id)
            with answer_lost(c, "detach_disk"):
                assert (await c.delete(path(server_id, volume_id))).status == 202
                await wait_until_idle(c, server_id)
                assert await unfinished_kinds(c) == ["restore_disk"]
                assert "could not detach disk" in await fault_message(c, server_id)
                assert (await show_volume(c, volume_id))["status"] == "in-use"
            await finish_operations(c)
            assert await guest_volumes(c, server_id) == [volume_id]
            assert [each["volumeId"] for each in await attachments(c, server_id)] == [volume_id]

    run(scenario())


def test_failed_swap_restores_old_volume(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, old, new = (await c.boot_active())["id"], await make_volume(c), await make_volume(c)
            await attach(c, server_id, old)
            with answer_lost(c, "swap_disk"):
                body = {"volumeAttachment": {"volumeId": new}}
                answer = await c.put(path(server_id, old), body, as_="project-admin", version=NEWEST)
                assert answer.status == 202, answer.body
                await wait_until_idle(c, server_id)
                assert await unfinished_kinds(c) == ["restore_disk"]
                assert (await show_volume(c, new))["status"] == "attaching"
            await finish_operations(c)
            assert await guest_volumes(c, server_id) == [old]
            assert (await show_volume(c, old))["status"] == "in-use"
            await wait_for_volume(c, new, "available")

    run(scenario())


def test_delete_after_failed_attach_releases_volume(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.boot_active())["id"], await make_volume(c)
            with answer_lost(c, "attach_disk"):
                assert (await request_attach(c, server_id, volume_id)).status == 202
                await wait_until_idle(c, server_id)
                assert (await c.delete(f"/servers/{server_id}")).status == 204
                await c.wait_until_deleted(server_id)
                assert (await show_volume(c, volume_id))["status"] == "attaching"
            await finish_operations(c)
            assert (await show_volume(c, volume_id))["status"] == "available"
            assert server_id not in await c.guests()

    run(scenario())


async def wait_for_undo(c: FullCloud, server_id: str, attempts: int) -> None:
    """Wait until the undo has run this often."""
    sql = "SELECT 1 FROM operations WHERE server_id = $1 AND state = 'undoing' AND attempt >= $2"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await c.db.fetch_value(sql, server_id, attempts):
            await asyncio.sleep(0.01)


async def deferred_kinds(c: FullCloud) -> list[str]:
    sql = "SELECT DISTINCT kind FROM operations WHERE finished_at IS NULL AND server_id IS NULL"
    return [row["kind"] for row in await c.db.fetch(sql)]


@EACH_REFUSAL
def test_refused_undo_is_deferred(
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    body: Any,
    failing: str,
    refused: str,
    deferred: str | None,
) -> None:
    monkeypatch.setattr(host_calls, "MAX_REFUSALS", 2)

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                for step in (failing, refused):
                    sim.add_failure("*", step, "error", None, f"no {step}")
                assert (await act(c, server["id"], action, body, as_="admin", version="2.96")).status == 202
                shown = await c.wait_until_settled(server["id"])
                host = server["OS-EXT-SRV-ATTR:host"]
                assert (shown["status"], shown["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
                assert shown["fault"]["message"]
                assert await deferred_kinds(c) == ([deferred] if deferred else [])
                sim.clear()
            await finish_operations(c)
            assert await c.guests() == {server["id"]: (host, "running")}
            assert await c.list_slots() == []

    run(scenario())


@EACH_REFUSAL
def test_delete_does_not_wait_for_refused_undo(
    sqlite_url: str, action: str, body: Any, failing: str, refused: str, deferred: str | None
) -> None:
    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure("*", failing, "error", None, None)
                # The delete itself must be able to destroy the guest.
                times = 3 if refused == "destroy" else None
                sim.add_failure("*", refused, "error", times, f"no {refused}")
                assert (await act(c, server["id"], action, body, as_="admin", version="2.96")).status == 202
                await wait_for_undo(c, server["id"], attempts=2)
                assert (await c.delete(f"/servers/{server['id']}")).status == 204
                await c.wait_until_deleted(server["id"])
                sim.clear()
            await finish_operations(c)
            assert await count_server_resources(c, server["id"]) == NO_RESOURCES
            assert await c.list_guests_and_slots() == []

    run(scenario())


def test_migrate_does_not_try_next_host_while_guest_is_parked(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_calls, "MAX_REFUSALS", 1)

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=3) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure("*", "receive", "error", 1, None)
                sim.add_failure("*", "unpark", "error", None, None)
                assert (await act(c, server["id"], "migrate", as_="admin", version="2.96")).status == 202
                shown = await c.wait_until_settled(server["id"])
                assert shown["status"] == "ACTIVE"
                assert shown["fault"]["message"] == "The server's host could not undo what was begun"
                sim.clear()
            await finish_operations(c)
            assert await c.guests() == {server["id"]: (server["OS-EXT-SRV-ATTR:host"], "running")}

    run(scenario())


def test_undo_that_never_finishes_is_deferred(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host answers all other calls."""
    monkeypatch.setattr(host_calls, "PROBE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(host_calls, "MAX_DELAYS", 2)

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            server = await c.boot_active()
            with rules(c) as sim:
                sim.add_failure("*", "receive", "error", None, None)
                sim.add_failure("*", "unpark", "hang", None, None)
                assert (await act(c, server["id"], "migrate", as_="admin", version="2.96")).status == 202
                assert (await c.wait_until_settled(server["id"]))["status"] == "ACTIVE"
                assert await deferred_kinds(c) == ["restore_guest"]
                sim.clear()
            await finish_operations(c)
            assert await c.guests() == {server["id"]: (server["OS-EXT-SRV-ATTR:host"], "running")}
            assert await c.list_slots() == []

    run(scenario())
