"""Ports, displays, diagnostics and the description of the host."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kilonova.hosts.drivers.base import DriverError, NotRunning
from kilonova.hosts.drivers.libvirt import nics
from kilonova.hosts.drivers.libvirt.driver import LibvirtDriver
from kilonova.hosts.messages import Flavor, Image, LocalDisk, NetworkPlan, Nic
from kilonova.ids import new_id
from tests.support.virt_driver import IMAGE_TRANSFER, Bridge, DriverBench, FileImageService
from tests.support.virt_hosts import linux_image

LINUX_FLAVOR = Flavor(vcpus=1, ram_mb=256, disk_gb=1)


def nic(number: int) -> Nic:
    return Nic(port_id=new_id(), mac=f"fa:16:3e:00:00:{number:02x}", network_id=new_id())


def macs(bench: DriverBench, guest_id: str, *options: str) -> list[str]:
    """The MACs of the running domain; with `--inactive` those of its definition."""
    document = ET.fromstring(bench.host.execute("virsh", "dumpxml", f"kn-{guest_id}", *options))
    return [str(one.get("address")) for one in document.findall("devices/interface/mac")]


def test_attach_and_detach_ports_of_running_guest(bench: DriverBench) -> None:
    bench.images = FileImageService(linux_image())
    first, second = nic(1), nic(2)
    guest = bench.guest(image=Image(id="linux", disk_format="qcow2"), flavor=LINUX_FLAVOR, nics=[first])

    async def scenario(driver: LibvirtDriver) -> None:
        driver.hypervisor.networks = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await bench.wait_for_output(guest, f"NIC .* {first.mac}")
        await bench.wait_for_output(guest, "BOOTED")
        for _ in range(2):
            await driver.attach_nic(guest.id, second)
            assert macs(bench, guest.id) == macs(bench, guest.id, "--inactive") == [first.mac, second.mac]
        tap = f"tap{second.port_id[:8]}"
        assert "knbench" in bench.host.execute("ip", "link", "show", tap)
        assert "mtu 1400" in bench.host.execute("ip", "link", "show", tap)
        for _ in range(2):
            await driver.detach_nic(guest.id, second.port_id)
            assert macs(bench, guest.id) == macs(bench, guest.id, "--inactive") == [first.mac]
        assert tap not in bench.host.execute("ip", "-br", "link")
        await driver.reboot(guest.id, hard=True)
        assert macs(bench, guest.id) == [first.mac]
        await driver.destroy(guest.id)
        assert "tap" not in bench.host.execute("ip", "-br", "link")

    bench.run(scenario)


def test_ports_of_stopped_guest_are_attached_at_its_start(bench: DriverBench) -> None:
    first, second = nic(3), nic(4)
    guest = bench.guest()

    async def scenario(driver: LibvirtDriver) -> None:
        driver.hypervisor.networks = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, start=False, data=IMAGE_TRANSFER)
        for port in (first, second, second):
            await driver.attach_nic(guest.id, port)
        await driver.detach_nic(guest.id, first.port_id)
        await driver.power_on(guest.id)
        assert macs(bench, guest.id) == [second.mac]

    bench.run(scenario)


def test_port_that_the_guest_does_not_release_stays(bench: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nics, "DETACH_TIMEOUT_SECONDS", 1.0)
    port = nic(5)
    guest = bench.guest(nics=[port])

    async def scenario(driver: LibvirtDriver) -> None:
        driver.hypervisor.networks = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        with pytest.raises(DriverError, match="does not release"):
            await driver.detach_nic(guest.id, port.port_id)
        assert [one.port_id for one in driver.hypervisor.spec(guest.id).nics] == [port.port_id]
        assert macs(bench, guest.id) == macs(bench, guest.id, "--inactive") == [port.mac]

    bench.run(scenario)


def test_ports_are_refused_without_networks(bench: DriverBench) -> None:
    guest = bench.guest(nics=[nic(6)])

    async def scenario(driver: LibvirtDriver) -> None:
        with pytest.raises(DriverError, match="no networks"):
            await driver.spawn(guest, data=IMAGE_TRANSFER)
        with pytest.raises(DriverError, match="no networks"):
            await driver.apply_network(NetworkPlan(read_at=1.0))
        await driver.destroy(guest.id)
        assert not bench.guest_resources(guest)
        assert not (await driver.describe()).networked

    bench.run(scenario)


def test_display_and_diagnostics(bench: DriverBench) -> None:
    port = nic(7)
    guest = bench.guest(nics=[port])

    async def scenario(driver: LibvirtDriver) -> None:
        driver.hypervisor.networks = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        await driver.check_display(guest.id, "vnc")
        for _ in range(2):
            with await driver.open_display(guest.id, "vnc") as screen:
                screen.settimeout(60)
                assert screen.recv(12).startswith(b"RFB ")
        assert bench.host.listening_sockets("libvirtd")
        assert not bench.host.listening_sockets("qemu")
        with pytest.raises(DriverError) as refused:
            await driver.check_display(guest.id, "spice-html5")
        assert refused.value.kind == "no display"

        await bench.wait_for_output(guest, "TICK 00001")
        diagnostics = await driver.get_diagnostics(guest.id)
        assert (diagnostics["state"], diagnostics["num_cpus"], diagnostics["num_nics"], diagnostics["num_disks"]) == (
            "running",
            1,
            1,
            1,
        )
        assert diagnostics["nic_details"][0]["mac_address"] == port.mac
        assert diagnostics["nic_details"][0]["tx_packets"] is not None
        assert diagnostics["memory_details"]["maximum"] == 64
        assert diagnostics["disk_details"][0]["read_bytes"] > 0
        assert diagnostics["cpu_details"][0]["time"] > 0
        assert diagnostics["uptime"] < 600

        await driver.power_off(guest.id)
        with pytest.raises(NotRunning):
            await driver.open_display(guest.id, "vnc")
        assert (await driver.get_diagnostics(guest.id))["state"] == "shutdown"

    bench.run(scenario)


def test_addresses_of_tagged_devices(bench: DriverBench) -> None:
    port = Nic(port_id=new_id(), mac="fa:16:3e:00:00:08", network_id=new_id(), tag="front")
    disk = LocalDisk(size_mb=16, tag="scratch")
    guest = bench.guest(nics=[port], local_disks=[disk], config_drive=True)

    async def scenario(driver: LibvirtDriver) -> None:
        driver.hypervisor.networks = Bridge(bench.host)  # type: ignore[assignment]
        await driver.spawn(guest, data=IMAGE_TRANSFER)
        monitor = bench.host.execute("virsh", "qemu-monitor-command", f"kn-{guest.id}", "--hmp", "info pci")
        drive = bench.instances / guest.id / "disk.config"
        metadata = bench.host.execute("isoinfo", "-R", "-x", "/openstack/latest/meta_data.json", "-i", drive)
        found = {device["tags"][0]: device for device in json.loads(metadata)["devices"]}
        assert found["front"]["mac"] == port.mac
        for device in found.values():
            _, bus, rest = device["address"].split(":")
            slot, function = rest.split(".")
            assert f"Bus  {int(bus, 16)}, device {int(slot, 16):3}, function {function}" in monitor

    bench.run(scenario)


def test_describe(bench: DriverBench) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = int(next(line for line in lines if line.startswith("MemTotal")).split()[1]) // 1024

    async def scenario(driver: LibvirtDriver) -> None:
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
        connector = await driver.get_connector()
        assert connector["kilonova_nbd"] is True
        assert (connector["host"], connector["ip"]) == (bench.host.name, bench.host.address)

    bench.run(scenario, cpu_allocation_ratio=2.5, reserved_memory_mb=100)


def test_guests_with_requested_hardware_boot(bench: DriverBench) -> None:
    """Each guest starts and boots from its disk."""
    image_properties = (
        {"hw_disk_bus": "ide"},
        {"hw_disk_bus": "scsi", "hw_rng_model": "virtio", "hw_qemu_guest_agent": "yes"},
        {"hw_machine_type": "q35", "hw_disk_bus": "sata", "hw_video_model": "virtio"},
        {"hw_disk_bus": "usb", "hw_vif_model": "e1000", "hw_watchdog_action": "reset", "hw_pointer_model": "usbtablet"},
    )

    async def scenario(driver: LibvirtDriver) -> None:
        driver.hypervisor.networks = Bridge(bench.host)  # type: ignore[assignment]
        for number, properties in enumerate(image_properties):
            guest = bench.guest(
                image=Image(id="micro", properties=properties),
                nics=[nic(10 + number)],
                config_drive=True,
                flavor=Flavor(vcpus=2, ram_mb=64, disk_gb=1, extra_specs={"hw:cpu_cores": "2", **_DISK_QUOTA}),
            )
            await driver.spawn(guest, data=IMAGE_TRANSFER)
            await bench.wait_for_output(guest, "TICK 00001")
            document = ET.fromstring(bench.host.execute("virsh", "dumpxml", f"kn-{guest.id}"))
            assert document.find("devices/disk[@device='cdrom']") is not None
            assert document.findtext("devices/disk/iotune/read_bytes_sec") == "1000000"
            await driver.destroy(guest.id)
            assert not bench.guest_resources(guest)

    bench.run(scenario)


def test_uefi_variables_survive_a_hard_reboot(bench: DriverBench) -> None:
    """The variables are stored with the guest."""
    guest = bench.guest(image=Image(id="micro", properties={"hw_firmware_type": "uefi", "hw_machine_type": "q35"}))

    async def scenario(driver: LibvirtDriver) -> None:
        assert (await driver.spawn(guest, data=IMAGE_TRANSFER)).power == "running"
        memory = bench.instances / guest.id / "nvram"
        assert memory.exists()
        await driver.power_off(guest.id)
        content = memory.read_bytes()[:-1] + b"!"
        memory.write_bytes(content)
        await driver.reboot(guest.id, hard=True)
        assert memory.read_bytes()[-1:] == b"!"
        await driver.destroy(guest.id)
        assert not bench.guest_resources(guest)

    bench.run(scenario)


_DISK_QUOTA = {"quota:disk_read_bytes_sec": "1000000"}
