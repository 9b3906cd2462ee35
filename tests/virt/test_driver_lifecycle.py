"""The driver's contract against a real libvirt: whatever is asked twice is done once, and what is there is found."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from kilonova.hosts.drivers.base import DriverError, MissingGuest, NotRunning
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Flavor
from kilonova.ids import new_id
from tests.support.virt_driver import DATA, Bench, until


def test_everything_twice(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        first = await driver.spawn(guest, data=DATA)
        assert first == await driver.spawn(guest, data=DATA)
        assert (first.power, first.vcpus, first.ram_mb, first.disk_gb) == ("running", 1, 64, 1)
        await bench.says(guest, "TICK 00001")
        for step, power in (
            (driver.pause, "paused"),
            (driver.unpause, "running"),
            (driver.suspend, "suspended"),
            (driver.resume, "running"),
        ):
            assert (await step(guest.id)).power == power
            assert (await step(guest.id)).power == power
            assert [state.power for state in await driver.guests()] == [power]
        await bench.says(guest, "TICK 00002")
        assert bench.console(guest).count("HELLO") == 1
        counted = bench.ticks(guest)
        assert counted == sorted(set(counted)), "the counter went on where it was"

        assert (await driver.power_off(guest.id)).power == "shutdown"
        assert (await driver.power_off(guest.id, 1.0)).power == "shutdown"
        for halt in (driver.pause, driver.suspend, driver.unpause, driver.resume, driver.crash_dump):
            with pytest.raises(NotRunning):
                await halt(guest.id)
        assert (await driver.power_on(guest.id)).power == "running"
        assert (await driver.power_on(guest.id)).power == "running"
        await driver.crash_dump(guest.id)
        await driver.crash_dump(guest.id)
        for _ in range(2):
            before = bench.console(guest).count("HELLO")
            assert (await driver.reboot(guest.id, hard=True)).power == "running"
            await bench.says(guest, f"(?s)(HELLO.*){{{before + 1}}}")
        await driver.destroy(guest.id)
        await driver.destroy(guest.id)
        assert await driver.guests() == []
        assert not bench.left_of(guest)

    bench.run(live)
    assert bench.images.reads == 1


def test_a_paused_guest_is_suspended_and_goes_on(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=DATA)
        await bench.says(guest, "TICK 00001")
        await driver.pause(guest.id)
        assert (await driver.suspend(guest.id)).power == "suspended"
        assert (await driver.power_on(guest.id)).power == "running"
        await bench.says(guest, "TICK 00003")
        assert bench.console(guest).count("HELLO") == 1

    bench.run(live)


def test_the_power_is_cut_of_a_guest_that_was_suspended(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=DATA)
        await driver.suspend(guest.id)
        assert (await driver.power_off(guest.id, 5.0)).power == "shutdown"
        await driver.power_on(guest.id)
        await until(lambda: bench.console(guest).count("HELLO") >= 1, "it booted anew")

    bench.run(live)


def test_a_guest_without_a_system_is_cut_when_its_grace_is_over(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=DATA)
        began = asyncio.get_running_loop().time()
        assert (await driver.power_off(guest.id, 1.0)).power == "shutdown"
        assert asyncio.get_running_loop().time() - began >= 1.0
        await driver.power_on(guest.id)
        assert (await driver.reboot(guest.id, hard=False)).power == "running"

    bench.run(live)


def test_unknown_guests_are_missing(bench: Bench) -> None:
    unknown = new_id()

    async def ask(driver: LibvirtDriver) -> None:
        for verb in (driver.power_on, driver.power_off, driver.pause, driver.unpause, driver.suspend, driver.resume):
            with pytest.raises(MissingGuest):
                await verb(unknown)
        with pytest.raises(MissingGuest):
            await driver.reboot(unknown, hard=True)
        with pytest.raises(MissingGuest):
            await driver.set_metadata(unknown, "x", {})
        with pytest.raises(MissingGuest):
            await driver.look_diagnostics(unknown)
        assert await driver.detach_nic(unknown, new_id()) is None
        assert await driver.detach_disk(unknown, new_id()) is None
        await driver.destroy(unknown)
        with pytest.raises(DriverError) as refused:
            await driver.destroy("../../etc")
        assert refused.value.kind == "malformed"

    bench.run(ask)


def test_another_guest_under_the_same_id_is_refused(bench: Bench) -> None:
    guest = bench.guest()
    larger = structs.replace(guest, flavor=Flavor(vcpus=2, ram_mb=128, disk_gb=1))
    renamed = structs.replace(guest, name="other", metadata={"a": "b"})

    async def live(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=DATA)
        with pytest.raises(DriverError) as refused:
            await driver.spawn(larger, data=DATA)
        assert refused.value.kind == "guest differs"
        assert (await driver.spawn(renamed, data=DATA)).name == "other"

    bench.run(live)


def test_a_spawn_that_was_half_done_is_completed(bench: Bench) -> None:
    """Whatever it had come to: the place, the spec, the disk, the domain."""
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        hv = driver.hypervisor
        hv.take(guest.id)
        assert await driver.guests() == []
        await driver.spawn(guest, start=False, data=DATA)
        assert (await hv.state(guest.id)).power == "shutdown"
        await hv.undefine(guest.id)
        assert [state.power for state in await driver.guests()] == ["shutdown"]
        (bench.instances / guest.id / "disk").unlink()
        assert (await driver.spawn(guest, data=DATA)).power == "running"
        await bench.says(guest, "HELLO")

    bench.run(live)


def test_what_half_a_spawn_left_is_destroyed(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        driver.hypervisor.take(guest.id)
        (bench.instances / guest.id / "disk.part").write_bytes(b"half")
        await driver.destroy(guest.id)
        assert not bench.left_of(guest)

    bench.run(live)


def test_a_destroy_stops_a_spawn_and_leaves_nothing(bench: Bench) -> None:
    """At whatever moment it comes."""

    async def live(driver: LibvirtDriver) -> None:
        for pause in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4):
            guest = bench.guest()
            spawn = asyncio.create_task(driver.spawn(guest, data=DATA))
            await asyncio.sleep(pause)
            spawn.cancel()
            await asyncio.gather(spawn, return_exceptions=True)
            await driver.destroy(guest.id)
            assert not bench.left_of(guest), f"cancelled after {pause} s"

    bench.run(live)


def test_a_second_driver_finds_everything(bench: Bench) -> None:
    running, stopped, suspended = bench.guest(name="runs"), bench.guest(name="stands"), bench.guest(name="sleeps")

    async def first(driver: LibvirtDriver) -> None:
        for guest in (running, stopped, suspended):
            await driver.spawn(guest, data=DATA)
        await driver.power_off(stopped.id)
        await driver.suspend(suspended.id)

    async def second(driver: LibvirtDriver) -> None:
        found = {state.name: state.power for state in await driver.guests()}
        assert found == {"runs": "running", "stands": "shutdown", "sleeps": "suspended"}
        assert (await driver.spawn(running, data=DATA)).power == "running"
        assert (await driver.resume(suspended.id)).power == "running"
        assert (await driver.power_on(stopped.id)).power == "running"
        await bench.says(running, "TICK 00002")
        assert bench.console(running).count("HELLO") == 1
        for guest in (running, stopped, suspended):
            await driver.destroy(guest.id)
            assert not bench.left_of(guest)

    bench.run(first)
    bench.run(second)


def test_metadata_are_rewritten(bench: Bench) -> None:
    guest = bench.guest(metadata={"old": "1"})

    async def live(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, start=False, data=DATA)
        for _ in range(2):
            await driver.set_metadata(guest.id, "<&new>", {"new": "2"})
        spec = driver.hypervisor.spec(guest.id)
        assert (spec.name, spec.metadata) == ("<&new>", {"new": "2"})
        assert (bench.instances / guest.id / "spec").stat().st_mode & 0o777 == 0o600
        assert (await driver.power_on(guest.id)).name == "<&new>"

    bench.run(live)


def test_files_of_a_guest_that_is_elsewhere_by_now_stay(bench: Bench) -> None:
    """Two hosts that share storage: one fails, the other takes its guest over, and the first is cleared."""
    guest = bench.guest()

    async def live() -> None:
        async with bench.running("failed") as failed, bench.running("rescuer") as rescuer:
            await failed.spawn(guest, data=DATA)
            disk = (bench.instances / guest.id / "disk").stat().st_ino
            with pytest.raises(DriverError) as refused:
                await rescuer.spawn(guest, data=DATA)
            assert refused.value.kind == "guest differs"
            await failed.hypervisor.undefine(guest.id)  # its power was cut
            for _ in range(2):
                assert (await rescuer.spawn(guest, data=DATA, disk_of="failed")).power == "running"
            assert (bench.instances / guest.id / "disk").stat().st_ino == disk
            assert len(await rescuer.guests()) == 1
            await rescuer.power_off(guest.id)
            await failed.destroy(guest.id)
            assert (bench.instances / guest.id / "disk").stat().st_ino == disk
            assert [state.power for state in await rescuer.guests()] == ["shutdown"]
            assert await failed.guests() == []
            assert (await rescuer.power_on(guest.id)).power == "running"
            await rescuer.destroy(guest.id)
            assert not bench.left_of(guest)

    asyncio.run(live())


def test_files_that_a_killed_agent_was_removing_go_at_its_next_start(bench: Bench) -> None:
    left = bench.instances / ".gone-1"
    left.mkdir(parents=True)
    (left / "disk").touch()

    async def live(driver: LibvirtDriver) -> None:
        await until(lambda: not left.exists(), "the files go")

    bench.run(live)
