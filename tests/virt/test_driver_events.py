"""Events of guests, and restarts of libvirt."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from tests.support.virt_driver import IMAGE_TRANSFER, DriverBench, FileImageService, wait_until

# Longer than a guest needs to shut down, even on a busy machine.
SHUTDOWN_TIMEOUT_SECONDS = 100.0


class PowerStates:
    """Records a guest's power states after each event."""

    def __init__(self, driver: LibvirtDriver) -> None:
        self.changes = 0
        driver.on_change(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def wait_for(self, driver: LibvirtDriver, power: str, seconds: float = 300.0) -> None:
        """Wait for the power state. It is read only after events."""
        async with asyncio.timeout(seconds):
            seen = -1
            while True:
                if self.changes != seen:
                    seen = self.changes
                    if [state.power for state in await driver.list_guests()] == [power]:
                        return
                await asyncio.sleep(0.02)


def test_killed_qemu_is_reported_as_crashed(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        power_states = PowerStates(driver)
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await power_states.wait_for(driver, "running")
        _kill(bench, guest.id)
        await power_states.wait_for(driver, "crashed")
        assert (await driver.power_off(guest.id)).power == "shutdown"
        assert [state.power for state in await driver.list_guests()] == ["shutdown"]
        assert (await driver.power_on(guest.id)).power == "running"
        _kill(bench, guest.id)
        await power_states.wait_for(driver, "crashed")
        assert (await driver.reboot(guest.id, hard=True)).power == "running"

    bench.run(scenario)


def test_changes_by_virsh_are_reported(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        power_states = PowerStates(driver)
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        for command, power in (("suspend", "paused"), ("resume", "running"), ("destroy", "shutdown")):
            await asyncio.to_thread(bench.host.execute, "virsh", command, f"kn-{guest.id}")
            await power_states.wait_for(driver, power)

    bench.run(scenario)


def test_domain_without_spec_is_reported_and_can_be_destroyed(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        (bench.instances / guest.id / "spec").unlink()
        (found,) = await driver.list_guests()
        assert (found.id, found.power, found.ram_mb) == (guest.id, "running", 64)
        await driver.destroy(guest.id)
        assert not bench.guest_resources(guest)

    bench.run(scenario)


@pytest.fixture
def libvirt_restarted(bench: DriverBench) -> Iterator[None]:
    """Restart libvirt after the test if it does not run."""
    yield
    if subprocess.run(["virsh", "-c", bench.host.uri, "version"], capture_output=True, check=False).returncode:
        bench.host.start_libvirt()


@pytest.mark.usefixtures("libvirt_restarted")
def test_guests_survive_a_libvirt_restart(bench: DriverBench) -> None:
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        power_states = PowerStates(driver)
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await bench.wait_for_output(guest, "TICK 00001")
        await asyncio.to_thread(bench.host.kill_libvirt)
        with pytest.raises(DriverError) as lost:
            for _ in range(100):
                await driver.pause(guest.id)
        assert lost.value.passing
        before = power_states.changes
        await asyncio.to_thread(bench.host.start_libvirt)
        await wait_until(lambda: power_states.changes > before, "the driver reconnects")
        await power_states.wait_for(driver, "running")
        await bench.wait_for_output(guest, f"TICK {bench.ticks(guest)[-1] + 1:05}")
        assert (await driver.pause(guest.id)).power == "paused"
        assert (await driver.unpause(guest.id)).power == "running"
        assert bench.console(guest).count("HELLO") == 1
        # The new connection delivers events too.
        await asyncio.to_thread(bench.host.execute, "virsh", "destroy", f"kn-{guest.id}")
        await power_states.wait_for(driver, "shutdown")

    bench.run(scenario)


def test_guest_shutdown_by_itself_and_by_power_button(bench: DriverBench) -> None:
    bench.images = FileImageService(bench.host.site.micro_image("stoppable", power_button=True))
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        power_states = PowerStates(driver)
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await bench.wait_for_output(guest, "TICK")
        began = asyncio.get_running_loop().time()
        assert (await driver.power_off(guest.id, SHUTDOWN_TIMEOUT_SECONDS)).power == "shutdown"
        assert asyncio.get_running_loop().time() - began < SHUTDOWN_TIMEOUT_SECONDS
        await power_states.wait_for(driver, "shutdown")
        start = len(bench.console(guest))
        await driver.power_on(guest.id)
        await bench.wait_for_output(guest, "TICK", start)
        start = len(bench.console(guest))
        driver.hypervisor.config.compute.shutdown_timeout_seconds = SHUTDOWN_TIMEOUT_SECONDS
        began = asyncio.get_running_loop().time()
        assert (await driver.reboot(guest.id, hard=False)).power == "running"
        assert asyncio.get_running_loop().time() - began < SHUTDOWN_TIMEOUT_SECONDS
        await bench.wait_for_output(guest, "HELLO stoppable", start)

    bench.run(scenario)


def _kill(bench: DriverBench, guest_id: str) -> None:
    (pid,) = (int(line.split()[0]) for line in _processes(bench) if guest_id in line)
    bench.host.execute("kill", f"-{int(signal.SIGKILL)}", str(pid))
    assert os.getpid() != pid


def _processes(bench: DriverBench) -> list[str]:
    lines = bench.host.execute("ps", "-ww", "-eo", "pid,args").splitlines()
    return [line for line in lines if "/usr/bin/qemu-system" in line]
