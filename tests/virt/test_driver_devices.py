"""Ports that come and go, screens, and what a host tells of guests and of itself."""

from __future__ import annotations

import json
import os
import socket
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError, NotRunning
from kilonova.hosts.drivers.libvirt import nics
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Flavor, Image, LocalDisk, NetworkPlan, Nic
from kilonova.ids import new_id
from tests.support.virt_driver import DATA, Bench, Bridge, Files
from tests.support.virt_hosts import linux_image

LINUX = Flavor(vcpus=1, ram_mb=256, disk_gb=1)


def nic(number: int) -> Nic:
    return Nic(port_id=new_id(), mac=f"fa:16:3e:00:00:{number:02x}", network_id=new_id())


def macs(bench: Bench, guest_id: str, *options: str) -> list[str]:
    """Of the domain as it is; `--inactive`: as it will be."""
    document = ET.fromstring(bench.host.do("virsh", "dumpxml", f"kn-{guest_id}", *options))
    return [str(one.get("address")) for one in document.findall("devices/interface/mac")]


def test_ports_come_and_go_while_the_guest_runs(bench: Bench) -> None:
    bench.images = Files(linux_image())
    first, second = nic(1), nic(2)
    guest = bench.guest(image=Image(id="linux", disk_format="qcow2"), flavor=LINUX, nics=[first])

    async def live(driver: LibvirtDriver) -> None:
        driver.hypervisor.wiring = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, data=DATA)
        await bench.says(guest, f"NIC .* {first.mac}")
        await bench.says(guest, "BOOTED")
        for _ in range(2):
            await driver.attach_nic(guest.id, second)
            assert macs(bench, guest.id) == macs(bench, guest.id, "--inactive") == [first.mac, second.mac]
        tap = f"tap{second.port_id[:8]}"
        assert "knbench" in bench.host.do("ip", "link", "show", tap)
        assert "mtu 1400" in bench.host.do("ip", "link", "show", tap)
        for _ in range(2):
            await driver.detach_nic(guest.id, second.port_id)
            assert macs(bench, guest.id) == macs(bench, guest.id, "--inactive") == [first.mac]
        assert tap not in bench.host.do("ip", "-br", "link")
        await driver.reboot(guest.id, hard=True)
        assert macs(bench, guest.id) == [first.mac]
        await driver.destroy(guest.id)
        assert "tap" not in bench.host.do("ip", "-br", "link")

    bench.run(live)


def test_a_guest_that_stands_still_has_its_ports_when_it_starts(bench: Bench) -> None:
    first, second = nic(3), nic(4)
    guest = bench.guest()

    async def live(driver: LibvirtDriver) -> None:
        driver.hypervisor.wiring = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, start=False, data=DATA)
        for port in (first, second, second):
            await driver.attach_nic(guest.id, port)
        await driver.detach_nic(guest.id, first.port_id)
        await driver.power_on(guest.id)
        assert macs(bench, guest.id) == [second.mac]

    bench.run(live)


def test_a_system_that_does_not_let_a_port_go_keeps_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nics, "LET_GO_SECONDS", 1.0)
    port = nic(5)
    guest = bench.guest(nics=[port])

    async def live(driver: LibvirtDriver) -> None:
        driver.hypervisor.wiring = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, data=DATA)
        with pytest.raises(DriverError, match="does not let"):
            await driver.detach_nic(guest.id, port.port_id)
        assert [one.port_id for one in driver.hypervisor.spec(guest.id).nics] == [port.port_id]
        assert macs(bench, guest.id) == macs(bench, guest.id, "--inactive") == [port.mac]

    bench.run(live)


def test_without_networks_ports_are_refused(bench: Bench) -> None:
    guest = bench.guest(nics=[nic(6)])

    async def live(driver: LibvirtDriver) -> None:
        with pytest.raises(DriverError, match="no networks"):
            await driver.spawn(guest, data=DATA)
        with pytest.raises(DriverError, match="no networks"):
            await driver.apply_network(NetworkPlan(read_at=1.0))
        await driver.destroy(guest.id)
        assert not bench.left_of(guest)
        assert not (await driver.describe()).networked

    bench.run(live)


def test_screen_and_diagnostics(bench: Bench) -> None:
    port = nic(7)
    guest = bench.guest(nics=[port])

    async def live(driver: LibvirtDriver) -> None:
        driver.hypervisor.wiring = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, data=DATA)
        shown = await driver.look_display(guest.id, "vnc")
        assert shown.host == bench.host.address
        with socket.create_connection((shown.host, shown.port), 60) as screen:
            assert screen.recv(12).startswith(b"RFB ")
        with pytest.raises(DriverError) as refused:
            await driver.look_display(guest.id, "spice-html5")
        assert refused.value.kind == "no display"

        await bench.says(guest, "TICK 00001")
        told = await driver.look_diagnostics(guest.id)
        assert (told["state"], told["num_cpus"], told["num_nics"], told["num_disks"]) == ("running", 1, 1, 1)
        assert told["nic_details"][0]["mac_address"] == port.mac
        assert told["nic_details"][0]["tx_packets"] is not None
        assert told["memory_details"]["maximum"] == 64
        assert told["disk_details"][0]["read_bytes"] > 0
        assert told["cpu_details"][0]["time"] > 0
        assert told["uptime"] < 600

        await driver.power_off(guest.id)
        with pytest.raises(NotRunning):
            await driver.look_display(guest.id, "vnc")
        assert (await driver.look_diagnostics(guest.id))["state"] == "shutdown"

    bench.run(live, vnc_listen=bench.host.address, vnc_address=bench.host.address)


def test_where_devices_with_a_tag_are_is_told(bench: Bench) -> None:
    port = Nic(port_id=new_id(), mac="fa:16:3e:00:00:08", network_id=new_id(), tag="front")
    disk = LocalDisk(size_mb=16, tag="scratch")
    guest = bench.guest(nics=[port], local_disks=[disk], config_drive=True)

    async def live(driver: LibvirtDriver) -> None:
        driver.hypervisor.wiring = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, data=DATA)
        monitor = bench.host.do("virsh", "qemu-monitor-command", f"kn-{guest.id}", "--hmp", "info pci")
        drive = bench.instances / guest.id / "disk.config"
        told = bench.host.do("isoinfo", "-R", "-x", "/openstack/latest/meta_data.json", "-i", drive)
        found = {one["tags"][0]: one for one in json.loads(told)["devices"]}
        assert found["front"]["mac"] == port.mac
        for one in found.values():
            _, bus, rest = one["address"].split(":")
            slot, function = rest.split(".")
            assert f"Bus  {int(bus, 16)}, device {int(slot, 16):3}, function {function}" in monitor

    bench.run(live)


def test_what_the_host_tells_of_itself(bench: Bench) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = int(next(line for line in lines if line.startswith("MemTotal")).split()[1]) // 1024

    async def look(driver: LibvirtDriver) -> None:
        facts = await driver.describe()
        assert (facts.host, facts.hypervisor_type) == (bench.host.name, "QEMU")
        assert facts.hypervisor_version > 1_000_000
        assert facts.inventory["VCPU"].total == os.cpu_count()
        assert facts.inventory["MEMORY_MB"].total == memory
        assert facts.inventory["MEMORY_MB"].reserved == 100
        assert facts.inventory["DISK_GB"].total > 0
        assert facts.inventory["VCPU"].allocation_ratio == 2.5
        assert {"COMPUTE_REBUILD_BFV", "COMPUTE_IMAGE_TYPE_QCOW2", "COMPUTE_NET_ATTACH_INTERFACE"} <= set(facts.traits)
        assert facts.addresses["migration"] == f"qemu+tcp://{bench.host.address}/system"
        assert facts.cpu_info["arch"] == "x86_64"
        assert facts.booted_at
        connector = await driver.look_connector()
        assert connector["kilonova_nbd"] is True
        assert (connector["host"], connector["ip"]) == (bench.host.name, bench.host.address)

    bench.run(look, cpu_ratio=2.5, reserved_memory_mb=100)


def test_the_hardware_that_an_image_asks_for_is_really_made(bench: Bench) -> None:
    """Each of these starts, and boots from its disk."""
    wishes = (
        {"hw_disk_bus": "ide"},
        {"hw_disk_bus": "scsi", "hw_rng_model": "virtio", "hw_qemu_guest_agent": "yes"},
        {"hw_machine_type": "q35", "hw_disk_bus": "sata", "hw_video_model": "virtio"},
        {"hw_disk_bus": "usb", "hw_vif_model": "e1000", "hw_watchdog_action": "reset", "hw_pointer_model": "usbtablet"},
    )

    async def live(driver: LibvirtDriver) -> None:
        driver.hypervisor.wiring = Bridge(bench.host)  # type: ignore[assignment]
        for number, properties in enumerate(wishes):
            guest = bench.guest(
                image=Image(id="micro", properties=properties),
                nics=[nic(10 + number)],
                config_drive=True,
                flavor=Flavor(vcpus=2, ram_mb=64, disk_gb=1, extra_specs={"hw:cpu_cores": "2", **_QUOTA}),
            )
            await driver.spawn(guest, data=DATA)
            await bench.says(guest, "TICK 00001")
            document = ET.fromstring(bench.host.do("virsh", "dumpxml", f"kn-{guest.id}"))
            assert document.find("devices/disk[@device='cdrom']") is not None
            assert document.findtext("devices/disk/iotune/read_bytes_sec") == "1000000"
            await driver.destroy(guest.id)
            assert not bench.left_of(guest)

    bench.run(live)


def test_firmware_that_remembers(bench: Bench) -> None:
    """What it remembers goes with the guest and stays through a hard reboot."""
    guest = bench.guest(image=Image(id="micro", properties={"hw_firmware_type": "uefi", "hw_machine_type": "q35"}))

    async def live(driver: LibvirtDriver) -> None:
        assert (await driver.spawn(guest, data=DATA)).power == "running"
        memory = bench.instances / guest.id / "nvram"
        assert memory.exists()
        await driver.power_off(guest.id)
        content = memory.read_bytes()[:-1] + b"!"
        memory.write_bytes(content)
        await driver.reboot(guest.id, hard=True)
        assert memory.read_bytes()[-1:] == b"!"
        await driver.destroy(guest.id)
        assert not bench.left_of(guest)

    bench.run(live)


_QUOTA = {"quota:disk_read_bytes_sec": "1000000"}
