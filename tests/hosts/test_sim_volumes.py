"""Volumes in simulated guests: every verb may be asked twice, and no volume has two writers."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from kilonova.hosts.drivers.base import DriverError, MissingDisk, MissingGuest
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.drivers.sim.facts import Body
from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SimStore
from kilonova.hosts.messages import Disk
from tests.hosts.support import disk, guest
from tests.support import run

HERE, THERE = "sim-001", "sim-002"


@pytest.fixture
def store(tmp_path: Path) -> SimStore:
    return SimStore(tmp_path / "sim.db")


@pytest.fixture
def here(store: SimStore) -> SimDriver:
    return _driver(HERE, store)


@pytest.fixture
def there(store: SimStore) -> SimDriver:
    return _driver(THERE, store)


def _driver(host: str, store: SimStore) -> SimDriver:
    return SimDriver(host, {HERE: Body(), THERE: Body()}, store, Rules(store), {})


def test_a_disk_is_attached_and_detached_twice_alike(here: SimDriver) -> None:
    async def scenario() -> None:
        with pytest.raises(MissingGuest):
            await here.attach_disk("guest-1", disk())
        await here.spawn(guest("guest-1"))
        for _ in range(2):
            assert (await here.attach_disk("guest-1", disk())).volumes == ["volume-1"]
        assert (await here.attach_disk("guest-1", disk("volume-2"))).volumes == ["volume-1", "volume-2"]
        for _ in range(2):
            left = await here.detach_disk("guest-1", "volume-1")
            assert left is not None
            assert left.volumes == ["volume-2"]
        assert await here.detach_disk("guest-2", "volume-1") is None
        assert [state.volumes for state in await here.guests()] == [["volume-2"]]

    run(scenario())


def test_a_guest_that_is_spawned_again_is_the_same_only_with_the_same_volumes(here: SimDriver) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", image=None, disks=[disk(boot_index=0)]))
        other_way = disk(boot_index=0, connection={"data": {"device_path": "/elsewhere"}})
        assert (await here.spawn(guest("guest-1", image=None, disks=[other_way]))).boots == 1
        with pytest.raises(DriverError) as refused:
            await here.spawn(guest("guest-1", image=None, disks=[disk("volume-2", boot_index=0)]))
        assert refused.value.kind == "guest differs"

    run(scenario())


def test_volumes_go_with_the_guest_into_slots_and_to_other_hosts(here: SimDriver, there: SimDriver) -> None:
    async def scenario() -> None:
        built = guest("guest-1", disks=[disk()])
        await here.spawn(built)
        assert (await here.park("guest-1", "op-1")).volumes == ["volume-1"]
        assert (await there.receive(built, HERE, "op-1", True)).volumes == ["volume-1"]
        await there.destroy("guest-1")
        assert (await here.unpark("guest-1", "op-1", True)).volumes == ["volume-1"]
        await there.expect(built, HERE, "op-2", None)
        await here.migrate_live("guest-1", THERE, "op-2", None)
        assert [state.volumes for state in await there.guests()] == [["volume-1"]]
        assert await here.guests() == []

    run(scenario())


def _spawn(driver: SimDriver, store: SimStore, **changes: Any) -> Any:
    return driver.spawn(guest("guest-2", disks=[disk(**changes)]))


async def _attach(driver: SimDriver, store: SimStore, **changes: Any) -> None:
    await driver.spawn(guest("guest-2"))
    await driver.attach_disk("guest-2", disk(**changes))


async def _power_on(driver: SimDriver, store: SimStore, **changes: Any) -> None:
    await driver.spawn(guest("guest-2", disks=[disk(**changes)]), start=False)
    await driver.power_on("guest-2")


@pytest.mark.parametrize("begin", [_spawn, _attach, _power_on])
def test_a_second_writer_is_refused(here: SimDriver, there: SimDriver, store: SimStore, begin: Any) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", disks=[disk()]))
        with pytest.raises(DriverError, match="volume-1 is written to by guest guest-1"):
            await begin(there, store)
        await there.destroy("guest-2")
        await here.power_off("guest-1")
        await begin(there, store)
        with pytest.raises(DriverError, match="guest-2"):
            await here.power_on("guest-1")

    run(scenario())


@pytest.mark.parametrize("begin", [_spawn, _attach, _power_on])
def test_a_shared_volume_may_have_many(here: SimDriver, there: SimDriver, store: SimStore, begin: Any) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", disks=[disk(shared=True)]))
        await begin(there, store, shared=True)
        assert len(store.writers("volume-1")) == 2

    run(scenario())


def test_the_same_guest_runs_on_another_host_only_if_its_own_has_failed(
    here: SimDriver, there: SimDriver, store: SimStore
) -> None:
    async def scenario() -> None:
        built = guest("guest-1", disks=[disk()])
        await here.spawn(built)
        with pytest.raises(DriverError, match="is written to"):
            await there.spawn(built)
        await there.spawn(built, disk_of=HERE)

    run(scenario())


def _file(path: Path, content: bytes, size: int) -> dict[str, Any]:
    path.write_bytes(content + bytes(size - len(content)))
    return {"driver_volume_type": "kilonova_file", "data": {"device_path": str(path)}}


def test_swapping_copies_every_byte(here: SimDriver, tmp_path: Path) -> None:
    async def scenario() -> None:
        content = bytes(range(256)) * 8192 + b"the end"
        old = disk("volume-1", connection=_file(tmp_path / "old", content, 3 << 20))
        new = disk("volume-2", connection=_file(tmp_path / "new", b"rubbish", 4 << 20))
        await here.spawn(guest("guest-1", disks=[old]))
        for _ in range(2):
            assert (await here.swap_disk("guest-1", "volume-1", new)).volumes == ["volume-2"]
        copied = (tmp_path / "new").read_bytes()
        assert len(copied) == 4 << 20
        assert _hash(copied[: 3 << 20]) == _hash((tmp_path / "old").read_bytes())
        with pytest.raises(MissingDisk):
            await here.swap_disk("guest-1", "volume-3", disk("volume-4"))

    run(scenario())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_swapping_to_a_smaller_volume_leaves_both_as_they_are(here: SimDriver, tmp_path: Path) -> None:
    async def scenario() -> None:
        old = disk("volume-1", connection=_file(tmp_path / "old", b"content", 4096))
        new = disk("volume-2", connection=_file(tmp_path / "new", b"rubbish", 512))
        await here.spawn(guest("guest-1", disks=[old]))
        with pytest.raises(DriverError, match="smaller"):
            await here.swap_disk("guest-1", "volume-1", new)
        assert (tmp_path / "new").read_bytes().startswith(b"rubbish")
        assert [state.volumes for state in await here.guests()] == [["volume-1"]]

    run(scenario())


def test_a_volume_that_is_no_file_cannot_be_swapped(here: SimDriver) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", disks=[disk()]))
        with pytest.raises(DriverError, match="none that simulated hosts can reach"):
            await here.swap_disk("guest-1", "volume-1", disk("volume-2"))

    run(scenario())


def test_only_a_volume_that_is_there_can_grow(here: SimDriver) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", disks=[disk()]))
        for _ in range(2):
            assert (await here.grow_disk("guest-1", "volume-1", 2)).volumes == ["volume-1"]
        with pytest.raises(MissingDisk):
            await here.grow_disk("guest-1", "volume-2", 2)

    run(scenario())


def test_hosts_tell_apart_who_they_are(here: SimDriver, there: SimDriver) -> None:
    async def scenario() -> None:
        connectors = await asyncio.gather(here.look_connector(), there.look_connector())
        assert [one["host"] for one in connectors] == [HERE, THERE]
        assert len({one["initiator"] for one in connectors}) == 2

    run(scenario())


def test_a_file_of_an_older_release_has_guests_without_volumes(tmp_path: Path) -> None:
    older = SimStore(tmp_path / "sim.db")
    older.add_guest(HERE, guest("guest-1"), "disk-1")
    for table in ("guests", "kept"):
        older.connection.execute(f"ALTER TABLE {table} DROP COLUMN volumes")
    older.close()
    store = SimStore(tmp_path / "sim.db")
    assert [state.volumes for state in store.guests(HERE)] == [[]]
    store.set_spec(HERE, guest("guest-1", disks=[disk()]))
    assert [state.volumes for state in store.guests(HERE)] == [["volume-1"]]
    with pytest.raises(apsw.SQLError):
        store.connection.execute("ALTER TABLE guests ADD COLUMN volumes TEXT")


def test_what_leads_to_a_volume_is_in_no_text() -> None:
    shown = repr(guest("guest-1", disks=[Disk(volume_id="v", connection={"data": {"auth_password": "hunter2"}})]))
    assert "hunter2" not in shown
    assert "hunter2" not in repr(disk(connection={"data": {"auth_password": "hunter2"}}))
