"""Idempotency and lifecycle of guests with a real libvirt."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from kilonova.hosts.drivers.base import DriverError, MissingGuest, NotRunning
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Flavor
from kilonova.ids import new_id
from tests.support.virt_driver import IMAGE_TRANSFER, DriverBench, wait_until


def test_commands_are_idempotent(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        first = await driver.spawn(guest, data=IMAGE_TRANSFER)
        assert first == await driver.spawn(guest, data=IMAGE_TRANSFER)
        assert (first.power, first.vcpus, first.ram_mb, first.disk_gb) == ("running", 1, 64, 1)
        await bench.wait_for_output(guest, "TICK 00001")
        for command, power in (
            (driver.pause, "paused"),
            (driver.unpause, "running"),
            (driver.suspend, "suspended"),
            (driver.resume, "running"),
        ):
            assert (await command(guest.id)).power == power
            assert (await command(guest.id)).power == power
            assert [state.power for state in await driver.list_guests()] == [power]
        await bench.wait_for_output(guest, "TICK 00002")
        assert bench.console(guest).count("HELLO") == 1
        counted = bench.ticks(guest)
        assert counted == sorted(set(counted)), "the guest counts on after the interruptions"

        assert (await driver.power_off(guest.id)).power == "shutdown"
        assert (await driver.power_off(guest.id, 1.0)).power == "shutdown"
        for refused in (driver.pause, driver.suspend, driver.unpause, driver.resume, driver.crash_dump):
            with pytest.raises(NotRunning):
                await refused(guest.id)
        assert (await driver.power_on(guest.id)).power == "running"
        assert (await driver.power_on(guest.id)).power == "running"
        await driver.crash_dump(guest.id)
        await driver.crash_dump(guest.id)
        for _ in range(2):
            before = bench.console(guest).count("HELLO")
            assert (await driver.reboot(guest.id, hard=True)).power == "running"
            await bench.wait_for_output(guest, f"(?s)(HELLO.*){{{before + 1}}}")
        await driver.destroy(guest.id)
        await driver.destroy(guest.id)
        assert await driver.list_guests() == []
        assert not bench.guest_resources(guest)

    bench.run(scenario)
    assert bench.images.reads == 1


def test_suspend_and_resume_of_paused_guest(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await bench.wait_for_output(guest, "TICK 00001")
        await driver.pause(guest.id)
        assert (await driver.suspend(guest.id)).power == "suspended"
        assert (await driver.power_on(guest.id)).power == "running"
        await bench.wait_for_output(guest, "TICK 00003")
        assert bench.console(guest).count("HELLO") == 1

    bench.run(scenario)


def test_power_off_deletes_saved_memory(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await driver.suspend(guest.id)
        assert (await driver.power_off(guest.id, 5.0)).power == "shutdown"
        await driver.power_on(guest.id)
        await wait_until(lambda: bench.console(guest).count("HELLO") >= 1, "the guest booted again")

    bench.run(scenario)


def test_power_off_is_forced_after_the_grace_period(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        began = asyncio.get_running_loop().time()
        assert (await driver.power_off(guest.id, 1.0)).power == "shutdown"
        assert asyncio.get_running_loop().time() - began >= 1.0
        await driver.power_on(guest.id)
        assert (await driver.reboot(guest.id, hard=False)).power == "running"

    bench.run(scenario)


def test_unknown_guests_are_missing(bench: DriverBench) -> None:
    unknown = new_id()

    async def scenario(driver: LibvirtDriver) -> None:
        for command in (driver.power_on, driver.power_off, driver.pause, driver.unpause, driver.suspend, driver.resume):
            with pytest.raises(MissingGuest):
                await command(unknown)
        with pytest.raises(MissingGuest):
            await driver.reboot(unknown, hard=True)
        with pytest.raises(MissingGuest):
            await driver.set_metadata(unknown, "x", {})
        with pytest.raises(MissingGuest):
            await driver.get_diagnostics(unknown)
        assert await driver.detach_nic(unknown, new_id()) is None
        assert await driver.detach_disk(unknown, new_id()) is None
        await driver.destroy(unknown)
        with pytest.raises(DriverError) as refused:
            await driver.destroy("../../etc")
        assert refused.value.kind == "malformed"

    bench.run(scenario)


def test_spawn_with_another_spec_is_refused(bench: DriverBench) -> None:
    guest = bench.guest()
    larger = structs.replace(guest, flavor=Flavor(vcpus=2, ram_mb=128, disk_gb=1))
    renamed = structs.replace(guest, name="other", metadata={"a": "b"})

    async def scenario(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        with pytest.raises(DriverError) as refused:
            await driver.spawn(larger, data=IMAGE_TRANSFER)
        assert refused.value.kind == "guest differs"
        assert (await driver.spawn(renamed, data=IMAGE_TRANSFER)).name == "other"

    bench.run(scenario)


def test_interrupted_spawn_is_completed(bench: DriverBench) -> None:
    """Interrupted after the directory, the spec, the disk or the domain."""
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        hv = driver.hypervisor
        hv.set_owner(guest.id)
        assert await driver.list_guests() == []
        await driver.spawn(guest, start=False, data=IMAGE_TRANSFER)
        assert (await hv.state(guest.id)).power == "shutdown"
        await hv.undefine(guest.id)
        assert [state.power for state in await driver.list_guests()] == ["shutdown"]
        (bench.instances / guest.id / "disk").unlink()
        assert (await driver.spawn(guest, data=IMAGE_TRANSFER)).power == "running"
        await bench.wait_for_output(guest, "HELLO")

    bench.run(scenario)


def test_destroy_removes_an_interrupted_spawn(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        driver.hypervisor.set_owner(guest.id)
        (bench.instances / guest.id / "disk.part").write_bytes(b"half")
        await driver.destroy(guest.id)
        assert not bench.guest_resources(guest)

    bench.run(scenario)


def test_destroy_cancels_a_spawn_and_removes_everything(bench: DriverBench) -> None:
    """At different moments of the spawn."""

    async def scenario(driver: LibvirtDriver) -> None:
        for pause in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4):
            guest = bench.guest()
            spawn = asyncio.create_task(driver.spawn(guest, data=IMAGE_TRANSFER))
            await asyncio.sleep(pause)
            spawn.cancel()
            await asyncio.gather(spawn, return_exceptions=True)
            await driver.destroy(guest.id)
            assert not bench.guest_resources(guest), f"cancelled after {pause} s"

    bench.run(scenario)


def test_new_driver_finds_existing_guests(bench: DriverBench) -> None:
    running, stopped, suspended = (
        bench.guest(name="running"),
        bench.guest(name="stopped"),
        bench.guest(name="suspended"),
    )

    async def first(driver: LibvirtDriver) -> None:
        for guest in (running, stopped, suspended):
            await driver.spawn(guest, data=IMAGE_TRANSFER)
        await driver.power_off(stopped.id)
        await driver.suspend(suspended.id)

    async def second(driver: LibvirtDriver) -> None:
        found = {state.name: state.power for state in await driver.list_guests()}
        assert found == {"running": "running", "stopped": "shutdown", "suspended": "suspended"}
        assert (await driver.spawn(running, data=IMAGE_TRANSFER)).power == "running"
        assert (await driver.resume(suspended.id)).power == "running"
        assert (await driver.power_on(stopped.id)).power == "running"
        await bench.wait_for_output(running, "TICK 00002")
        assert bench.console(running).count("HELLO") == 1
        for guest in (running, stopped, suspended):
            await driver.destroy(guest.id)
            assert not bench.guest_resources(guest)

    bench.run(first)
    bench.run(second)


def test_set_metadata(bench: DriverBench) -> None:
    guest = bench.guest(metadata={"old": "1"})

    async def scenario(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, start=False, data=IMAGE_TRANSFER)
        for _ in range(2):
            await driver.set_metadata(guest.id, "<&new>", {"new": "2"})
        spec = driver.hypervisor.spec(guest.id)
        assert (spec.name, spec.metadata) == ("<&new>", {"new": "2"})
        assert (bench.instances / guest.id / "spec").stat().st_mode & 0o777 == 0o600
        assert (await driver.power_on(guest.id)).name == "<&new>"

    bench.run(scenario)


def test_destroy_keeps_files_of_another_owner(bench: DriverBench) -> None:
    """On shared storage: a host fails, another one takes over its guest, then the first is cleaned up."""
    guest = bench.guest()

    async def scenario() -> None:
        async with bench.running("failed") as failed, bench.running("other") as other:
            await failed.spawn(guest, data=IMAGE_TRANSFER)
            disk = (bench.instances / guest.id / "disk").stat().st_ino
            with pytest.raises(DriverError) as refused:
                await other.spawn(guest, data=IMAGE_TRANSFER)
            assert refused.value.kind == "guest differs"
            await failed.hypervisor.undefine(guest.id)  # the host lost power
            for _ in range(2):
                assert (await other.spawn(guest, data=IMAGE_TRANSFER, disk_of="failed")).power == "running"
            assert (bench.instances / guest.id / "disk").stat().st_ino == disk
            assert len(await other.list_guests()) == 1
            await other.power_off(guest.id)
            await failed.destroy(guest.id)
            assert (bench.instances / guest.id / "disk").stat().st_ino == disk
            assert [state.power for state in await other.list_guests()] == ["shutdown"]
            assert await failed.list_guests() == []
            assert (await other.power_on(guest.id)).power == "running"
            await other.destroy(guest.id)
            assert not bench.guest_resources(guest)

    asyncio.run(scenario())


def test_interrupted_removal_is_resumed_at_start(bench: DriverBench) -> None:
    removed = bench.instances / ".gone-1"
    removed.mkdir(parents=True)
    (removed / "disk").touch()

    async def scenario(driver: LibvirtDriver) -> None:
        await wait_until(lambda: not removed.exists(), "the files are removed")

    bench.run(scenario)
