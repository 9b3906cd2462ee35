"""What happens to guests by itself is noticed, and a libvirt that dies takes nothing with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from tests.support.virt_driver import DATA, Bench, Files, until

# So long that a system that obeys has ended before, also on a busy machine.
GRACE = 100.0


class Powers:
    """The powers that a guest was seen with after each event."""

    def __init__(self, driver: LibvirtDriver) -> None:
        self.changes = 0
        driver.on_change(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def until(self, driver: LibvirtDriver, power: str, seconds: float = 300.0) -> None:
        """Looks only when something was told."""
        async with asyncio.timeout(seconds):
            seen = -1
            while True:
                if self.changes != seen:
                    seen = self.changes
                    if [state.power for state in await driver.guests()] == [power]:
                        return
                await asyncio.sleep(0.02)


def test_a_guest_whose_process_dies_has_crashed(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        powers = Powers(driver)
        await driver.spawn(guest, data=DATA)
        await powers.until(driver, "running")
        _kill(bench, guest.id)
        await powers.until(driver, "crashed")
        assert (await driver.power_off(guest.id)).power == "shutdown"
        assert [state.power for state in await driver.guests()] == ["shutdown"]
        assert (await driver.power_on(guest.id)).power == "running"
        _kill(bench, guest.id)
        await powers.until(driver, "crashed")
        assert (await driver.reboot(guest.id, hard=True)).power == "running"

    bench.run(live)


def test_what_an_operator_does_is_told(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        powers = Powers(driver)
        await driver.spawn(guest, data=DATA)
        for command, power in (("suspend", "paused"), ("resume", "running"), ("destroy", "shutdown")):
            await asyncio.to_thread(bench.host.do, "virsh", command, f"kn-{guest.id}")
            await powers.until(driver, power)

    bench.run(live)


def test_a_domain_of_which_nothing_is_written_is_told_and_can_be_removed(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        await driver.spawn(guest, data=DATA)
        (bench.instances / guest.id / "spec").unlink()
        (found,) = await driver.guests()
        assert (found.id, found.power, found.ram_mb) == (guest.id, "running", 64)
        await driver.destroy(guest.id)
        assert not bench.left_of(guest)

    bench.run(live)


@pytest.fixture
def libvirt_again(bench: Bench) -> Iterator[None]:
    """Whatever the test does to it, the next one finds a libvirt."""
    yield
    if subprocess.run(["virsh", "-c", bench.host.uri, "version"], capture_output=True, check=False).returncode:
        bench.host.start_libvirt()


@pytest.mark.usefixtures("libvirt_again")
def test_guests_outlive_libvirt_and_are_found_again(bench: Bench) -> None:
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        powers = Powers(driver)
        await driver.spawn(guest, data=DATA)
        await bench.says(guest, "TICK 00001")
        await asyncio.to_thread(bench.host.kill_libvirt)
        with pytest.raises(DriverError) as lost:
            for _ in range(100):
                await driver.pause(guest.id)
        assert lost.value.passing
        before = powers.changes
        await asyncio.to_thread(bench.host.start_libvirt)
        await until(lambda: powers.changes > before, "the connection is back by itself")
        await powers.until(driver, "running")
        await bench.says(guest, f"TICK {bench.ticks(guest)[-1] + 1:05}")
        assert (await driver.pause(guest.id)).power == "paused"
        assert (await driver.unpause(guest.id)).power == "running"
        assert bench.console(guest).count("HELLO") == 1
        # Events come on the new connection too.
        await asyncio.to_thread(bench.host.do, "virsh", "destroy", f"kn-{guest.id}")
        await powers.until(driver, "shutdown")

    bench.run(live)


def test_a_system_that_shuts_down_by_itself_and_one_that_obeys(bench: Bench) -> None:
    bench.images = Files(bench.host.site.micro_image("obedient", obeys=True))
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        powers = Powers(driver)
        await driver.spawn(guest, data=DATA)
        await bench.says(guest, "TICK")
        began = asyncio.get_running_loop().time()
        assert (await driver.power_off(guest.id, GRACE)).power == "shutdown"
        assert asyncio.get_running_loop().time() - began < GRACE
        await powers.until(driver, "shutdown")
        start = len(bench.console(guest))
        await driver.power_on(guest.id)
        await bench.says(guest, "TICK", start)
        start = len(bench.console(guest))
        driver.hypervisor.config.compute.shutdown_seconds = GRACE
        began = asyncio.get_running_loop().time()
        assert (await driver.reboot(guest.id, hard=False)).power == "running"
        assert asyncio.get_running_loop().time() - began < GRACE
        await bench.says(guest, "HELLO obedient", start)

    bench.run(live)


def _kill(bench: Bench, guest_id: str) -> None:
    (pid,) = (int(line.split()[0]) for line in _processes(bench) if guest_id in line)
    bench.host.do("kill", f"-{int(signal.SIGKILL)}", str(pid))
    assert os.getpid() != pid


def _processes(bench: Bench) -> list[str]:
    lines = bench.host.do("ps", "-ww", "-eo", "pid,args").splitlines()
    return [line for line in lines if "/usr/bin/qemu-system" in line]
