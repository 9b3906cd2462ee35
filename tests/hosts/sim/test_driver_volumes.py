"""Volumes of simulated guests: methods are idempotent, and no volume has two writers."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import apsw
import pytest

from kilonova.hosts.drivers.base import DriverError, MissingDisk, MissingGuest
from kilonova.hosts.drivers.sim.driver import SimDriver
from kilonova.hosts.drivers.sim.facts import Hardware
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
    return SimDriver(host, {HERE: Hardware(), THERE: Hardware()}, store, Rules(store), {})


def test_attach_and_detach_disk_are_idempotent(here: SimDriver) -> None:
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
        assert [state.volumes for state in await here.list_guests()] == [["volume-2"]]

    run(scenario())


def test_spawn_with_other_volumes_is_refused(here: SimDriver) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", image=None, disks=[disk(boot_index=0)]))
        other_connection = disk(boot_index=0, connection={"data": {"device_path": "/elsewhere"}})
        assert (await here.spawn(guest("guest-1", image=None, disks=[other_connection]))).boots == 1
        with pytest.raises(DriverError) as refused:
            await here.spawn(guest("guest-1", image=None, disks=[disk("volume-2", boot_index=0)]))
        assert refused.value.kind == "guest differs"

    run(scenario())


def test_volumes_move_with_guest(here: SimDriver, there: SimDriver) -> None:
    async def scenario() -> None:
        built = guest("guest-1", disks=[disk()])
        await here.spawn(built)
        assert (await here.park("guest-1", "op-1")).volumes == ["volume-1"]
        assert (await there.receive(built, HERE, "op-1", True)).volumes == ["volume-1"]
        await there.destroy("guest-1")
        assert (await here.unpark("guest-1", "op-1", True)).volumes == ["volume-1"]
        await there.prepare_migration(built, HERE, "op-2", None)
        await here.migrate_live("guest-1", THERE, "op-2", None)
        assert [state.volumes for state in await there.list_guests()] == [["volume-1"]]
        assert await here.list_guests() == []

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
def test_second_writer_of_volume_is_refused(here: SimDriver, there: SimDriver, store: SimStore, begin: Any) -> None:
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
def test_shared_volume_allows_several_writers(here: SimDriver, there: SimDriver, store: SimStore, begin: Any) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", disks=[disk(shared=True)]))
        await begin(there, store, shared=True)
        assert len(store.writers("volume-1")) == 2

    run(scenario())


def test_same_guest_starts_on_other_host_only_after_failure(here: SimDriver, there: SimDriver, store: SimStore) -> None:
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


def test_swap_disk_copies_all_content(here: SimDriver, tmp_path: Path) -> None:
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


def test_swap_disk_to_smaller_volume_is_refused(here: SimDriver, tmp_path: Path) -> None:
    async def scenario() -> None:
        old = disk("volume-1", connection=_file(tmp_path / "old", b"content", 4096))
        new = disk("volume-2", connection=_file(tmp_path / "new", b"rubbish", 512))
        await here.spawn(guest("guest-1", disks=[old]))
        with pytest.raises(DriverError, match="smaller"):
            await here.swap_disk("guest-1", "volume-1", new)
        assert (tmp_path / "new").read_bytes().startswith(b"rubbish")
        assert [state.volumes for state in await here.list_guests()] == [["volume-1"]]

    run(scenario())


def test_swap_disk_needs_device_path(here: SimDriver) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", disks=[disk()]))
        with pytest.raises(DriverError, match="has no device_path for simulated hosts"):
            await here.swap_disk("guest-1", "volume-1", disk("volume-2"))

    run(scenario())


def test_grow_disk_needs_attached_volume(here: SimDriver) -> None:
    async def scenario() -> None:
        await here.spawn(guest("guest-1", disks=[disk()]))
        for _ in range(2):
            assert (await here.grow_disk("guest-1", "volume-1", 2)).volumes == ["volume-1"]
        with pytest.raises(MissingDisk):
            await here.grow_disk("guest-1", "volume-2", 2)

    run(scenario())


def test_connectors_are_unique_per_host(here: SimDriver, there: SimDriver) -> None:
    async def scenario() -> None:
        connectors = await asyncio.gather(here.get_connector(), there.get_connector())
        assert [connector["host"] for connector in connectors] == [HERE, THERE]
        assert len({connector["initiator"] for connector in connectors}) == 2

    run(scenario())


def test_sim_file_without_volumes_is_upgraded(tmp_path: Path) -> None:
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


def test_repr_hides_volume_connection() -> None:
    shown = repr(guest("guest-1", disks=[Disk(volume_id="v", connection={"data": {"auth_password": "hunter2"}})]))
    assert "hunter2" not in shown
    assert "hunter2" not in repr(disk(connection={"data": {"auth_password": "hunter2"}}))
