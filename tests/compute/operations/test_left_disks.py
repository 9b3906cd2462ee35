"""Hosts that fall silent while volumes come and go: nobody else gets what a guest may have, until they are back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from kilonova.compute.operations import leftovers, silence
from kilonova.compute.operations.left_disks import RestoreDisk
from kilonova.operations import Operation, begin
from kilonova.store import Database, Transaction
from tests.compute.operations.attachment_worlds import VolumeOperation
from tests.compute.operations.test_silence import all_done, unfinished
from tests.compute.operations.worlds import OnOneDatabase, World
from tests.compute.servers.support import rules
from tests.compute.volume_attachments.support import (
    NEWEST,
    ask_attach,
    attach,
    attachments,
    idle,
    in_guest,
    path,
)
from tests.support import run
from tests.support.volumes import make_volume, volume, volume_until
from tests.support.whole import Whole, whole

HOST = "sim-001"


@contextmanager
def unheard(c: Whole, step: str) -> Iterator[None]:
    """The host does the step, and is silent before it says so; it is not asked anything else then.

    Only so long is it soon given up: a host that is there may be slow.
    """
    operations = c.services.config.operations
    with rules(c) as sim, pytest.MonkeyPatch.context() as quick:
        quick.setattr(operations, "host_seconds", 0.3)
        for module in (silence, leftovers):
            quick.setattr(module, "PING", 0.3)
        sim.add_failure(HOST, step, "hang", None, None)
        for other in ("describe", "attach_disk", "detach_disk", "swap_disk"):
            if other != step:
                sim.add_failure(HOST, other, "unreachable", None, None)
        yield
        sim.clear()


async def told(c: Whole, server_id: str) -> str:
    found: str = (await c.show(server_id))["fault"]["message"]
    return found


def test_a_volume_that_a_silent_host_may_have_is_kept_until_its_return(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, other_id, volume_id = (await c.active())["id"], (await c.active())["id"], await make_volume(c)
            with unheard(c, "attach_disk"):
                assert (await ask_attach(c, server_id, volume_id)).status == 202
                await idle(c, server_id)
                assert await unfinished(c) == ["restore disk"]
                assert "could not attach disk" in await told(c, server_id)
                assert await attachments(c, server_id) == []
                assert (await volume(c, volume_id))["status"] == "attaching"
                assert (await ask_attach(c, other_id, volume_id)).status == 400
            await all_done(c)
            assert (await volume(c, volume_id))["status"] == "available"
            assert await in_guest(c, server_id) == []
            await attach(c, other_id, volume_id)
            assert await in_guest(c, other_id) == [volume_id]

    run(scenario())


def test_a_volume_that_a_silent_host_may_have_lost_is_given_again(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.active())["id"], await make_volume(c)
            await attach(c, server_id, volume_id)
            with unheard(c, "detach_disk"):
                assert (await c.delete(path(server_id, volume_id))).status == 202
                await idle(c, server_id)
                assert await unfinished(c) == ["restore disk"]
                assert "could not detach disk" in await told(c, server_id)
                assert (await volume(c, volume_id))["status"] == "in-use"
            await all_done(c)
            assert await in_guest(c, server_id) == [volume_id]
            assert [each["volumeId"] for each in await attachments(c, server_id)] == [volume_id]

    run(scenario())


def test_a_volume_that_a_silent_host_may_have_swapped_comes_back(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, old, new = (await c.active())["id"], await make_volume(c), await make_volume(c)
            await attach(c, server_id, old)
            with unheard(c, "swap_disk"):
                body = {"volumeAttachment": {"volumeId": new}}
                answer = await c.put(path(server_id, old), body, as_="project-admin", version=NEWEST)
                assert answer.status == 202, answer.body
                await idle(c, server_id)
                assert await unfinished(c) == ["restore disk"]
                assert (await volume(c, new))["status"] == "attaching"
            await all_done(c)
            assert await in_guest(c, server_id) == [old]
            assert (await volume(c, old))["status"] == "in-use"
            await volume_until(c, new, "available")

    run(scenario())


def test_a_deleted_server_leaves_no_volume_behind(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            server_id, volume_id = (await c.active())["id"], await make_volume(c)
            with unheard(c, "attach_disk"):
                assert (await ask_attach(c, server_id, volume_id)).status == 202
                await idle(c, server_id)
                assert (await c.delete(f"/servers/{server_id}")).status == 204
                await c.gone(server_id)
                assert (await volume(c, volume_id))["status"] == "attaching"
            await all_done(c)
            assert (await volume(c, volume_id))["status"] == "available"
            assert server_id not in await c.guests()

    run(scenario())


class TestRestoreDisk(VolumeOperation):
    """It only goes forward. The server's record has the volume."""

    __test__ = True
    operation: ClassVar[type[Operation]] = RestoreDisk
    known: ClassVar[bool] = True

    async def begin(self, tx: Transaction, world: World) -> str:
        cause = await tx.fetch_one("SELECT id, round, epoch FROM operations WHERE kind = 'attach_volume'")
        assert cause is not None
        if not self.known:
            await tx.execute("DELETE FROM block_devices")
        fence = {"operation": cause["id"], "round": cause["round"], "epoch": cause["epoch"] + 1}
        about = {"guest_id": world.server_id, "host": HOST, "volume_id": self.volumes["data"], "other": None}
        return await begin(tx, RestoreDisk, params={**about, **fence})

    async def census(self, db: Database, world: World) -> Any:
        return None

    async def outcome(self, db: Database, world: World) -> Any:
        return await VolumeOperation.census(self, db, world)

    def check_end(self, seen: Any) -> None:
        data = seen["volumes"]["data"]
        status = "in-use" if self.known else "available"
        assert (data["status"], bool(data["attachments"]), bool(data["in guests"])) == (status, self.known, self.known)


class TestRestoreWithoutDisk(OnOneDatabase, TestRestoreDisk):
    """It does not: the guest loses the volume, and it is given back."""

    _expected: ClassVar[Any] = None
    known = False
