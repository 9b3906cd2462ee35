"""Domain XML of guests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kilonova.config import Config
from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import domain
from kilonova.hosts.drivers.libvirt.connection import Connection
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.drivers.libvirt.layout import Layout
from kilonova.hosts.messages import Disk, Flavor, Guest, Image, LocalDisk, Nic
from kilonova.ids import new_id


class FakeNetworks:
    def bridge_of(self, network_id: str) -> str:
        return "kn-bridge"

    def tap_of(self, port_id: str) -> str:
        return "tap"

    def mtu_of(self, network_id: str) -> int:
        return 1450


def hypervisor(tmp_path: Path, **libvirt: Any) -> Hypervisor:
    config = Config()
    config.libvirt.virt_type = "qemu"
    for name, value in libvirt.items():
        setattr(config.libvirt, name, value)
    made = Hypervisor("here", config, Connection("test:///default"), Layout(tmp_path))
    made.networks = FakeNetworks()  # type: ignore[assignment]
    return made


def guest(**changes: Any) -> Guest:
    flavor = Flavor(name="m1.tiny", vcpus=2, ram_mb=128, disk_gb=1)
    return Guest(**{"id": new_id(), "name": "web", "project_id": "p", "user_id": "u", "flavor": flavor, **changes})


def image(**properties: str) -> Image:
    return Image(id="i", properties=properties)


def build_domain(tmp_path: Path, one: Guest, **libvirt: Any) -> ET.Element:
    return ET.fromstring(domain.domain_xml(hypervisor(tmp_path, **libvirt), one))


def attribute(element: ET.Element, path: str, name: str) -> str | None:
    found = element.find(path)
    return found.get(name) if found is not None else None


def volume(**changes: Any) -> Disk:
    data = {"host": "127.0.0.1", "port": 10809, "export": "x"}
    return Disk(**{"volume_id": new_id(), "connection": {"driver_volume_type": "nbd", "data": data}, **changes})


def test_domain_of_a_plain_guest(tmp_path: Path) -> None:
    one = guest(image=image(), nics=[Nic(port_id=new_id(), mac="fa:16:3e:00:00:01")], config_drive=True)
    made = build_domain(tmp_path, one)
    assert (made.get("type"), made.findtext("uuid"), made.findtext("name")) == ("qemu", one.id, f"kn-{one.id}")
    assert (made.findtext("memory"), made.findtext("vcpu")) == ("128", "2")
    assert attribute(made, "os/type", "machine") == "pc"
    assert made.findtext("cpu/model") == "qemu64"
    root, config_drive = made.findall("devices/disk")
    assert attribute(root, "source", "file") == f"{tmp_path}/{one.id}/disk"
    assert (attribute(root, "target", "bus"), attribute(root, "boot", "order")) == ("virtio", "1")
    assert attribute(root, "driver", "cache") == "none"
    assert (config_drive.get("device"), attribute(config_drive, "target", "bus")) == ("cdrom", "ide")
    assert attribute(made, "devices/interface/source", "bridge") == "kn-bridge"
    assert attribute(made, "devices/interface/mtu", "size") == "1450"
    assert attribute(made, "devices/serial/log", "file") == f"{tmp_path}/{one.id}/console.log"
    assert attribute(made, "devices/serial/log", "append") == "on"
    assert attribute(made, "devices/graphics/listen", "type") == "none"
    assert attribute(made, "devices/memballoon/stats", "period")
    assert made.find("devices/channel") is None


def test_image_properties_of_a_boot_volume(tmp_path: Path) -> None:
    properties = {
        "hw_machine_type": "q35",
        "hw_disk_bus": "scsi",
        "hw_vif_model": "e1000",
        "hw_qemu_guest_agent": "yes",
    }
    nics = [Nic(port_id=new_id(), mac="fa:16:3e:00:00:01")]
    one = guest(disks=[volume(boot_index=0)], nics=nics, config_drive=True, volume_properties=properties)
    made = build_domain(tmp_path, one)
    assert attribute(made, "os/type", "machine") == "q35"
    assert attribute(made, "devices/disk[@device='disk']/target", "bus") == "scsi"
    assert attribute(made, "devices/disk[@device='cdrom']/target", "bus") == "sata"
    assert attribute(made, "devices/interface/model", "type") == "e1000"
    assert made.find("devices/channel") is not None
    assert not one.has_same_hardware(msgspec.structs.replace(one, volume_properties={}))


def test_user_text_is_escaped(tmp_path: Path) -> None:
    hostile = """'"/><devices><disk type='block'><source dev='/dev/sda'/></disk>&lt;]]>\x00\x0b\ud800"""
    one = guest(
        name=hostile, image=image(), flavor=Flavor(name=hostile, vcpus=1, ram_mb=64, disk_gb=1), project_id=hostile
    )
    made = build_domain(tmp_path, one)
    assert len(made.findall("devices/disk")) == 1
    assert [attribute(disk, "source", "file") for disk in made.iter("disk")] == [f"{tmp_path}/{one.id}/disk"]
    name = made.findtext(f"metadata/{{{domain.NAMESPACE}}}server/{{{domain.NAMESPACE}}}name")
    assert name is not None
    assert name.startswith("""'"/><devices>""")


def test_invalid_file_names_are_refused(tmp_path: Path) -> None:
    for wrong in ("../../etc", "a/b", "", ".", "..", "a@b", "-x"):
        with pytest.raises(DriverError):
            build_domain(tmp_path, guest(id=wrong, image=image()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hw_disk_bus", "virtio'/><x"),
        ("hw_vif_model", "nonsense"),
        ("hw_video_model", "huge"),
        ("hw_machine_type", "pc' evil='"),
        ("hw_scsi_model", "?"),
        ("hw_cpu_cores", "many"),
        ("hw_cpu_cores", "3"),
        ("hw_watchdog_action", "explode"),
    ],
)
def test_invalid_hardware_properties_are_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(DriverError, match=r"hw_|vCPUs"):
        build_domain(
            tmp_path, guest(image=image(**{name: value}), nics=[Nic(port_id=new_id(), mac="fa:16:3e:00:00:01")])
        )


def test_hardware_properties_of_the_image(tmp_path: Path) -> None:
    properties = image(
        hw_machine_type="q35",
        hw_disk_bus="scsi",
        hw_vif_model="e1000",
        hw_rng_model="virtio",
        hw_qemu_guest_agent="yes",
        hw_video_model="qxl",
        hw_firmware_type="uefi",
        hw_cpu_sockets="1",
        hw_cpu_threads="2",
        hw_watchdog_action="poweroff",
        os_type="windows",
    )
    made = build_domain(
        tmp_path, guest(image=properties, nics=[Nic(port_id=new_id(), mac="fa:16:3e:00:00:01")], config_drive=True)
    )
    assert attribute(made, "os/type", "machine") == "q35"
    assert attribute(made, "os", "firmware") == "efi"
    assert [attribute(disk, "target", "bus") for disk in made.findall("devices/disk")] == ["scsi", "sata"]
    assert attribute(made, "devices/controller", "model") == "virtio-scsi"
    assert attribute(made, "devices/interface/model", "type") == "e1000"
    assert made.findtext("devices/rng/backend") == "/dev/urandom"
    assert attribute(made, "devices/channel/target", "name") == "org.qemu.guest_agent.0"
    assert attribute(made, "devices/video/model", "type") == "qxl"
    assert made.find("cpu/topology").attrib == {"sockets": "1", "cores": "1", "threads": "2"}  # type: ignore[union-attr]
    assert attribute(made, "devices/watchdog", "action") == "poweroff"
    assert attribute(made, "clock", "offset") == "localtime"


def test_flavor_quotas(tmp_path: Path) -> None:
    specs = {
        "quota:cpu_shares": "512",
        "quota:cpu_quota": "-1",
        "quota:memory_limit": "256",
        "quota:disk_write_iops_sec": "100",
        "quota:vif_outbound_average": "1000",
        "quota:vif_outbound_burst": "2000",
        "hw_rng:rate_bytes": "64",
    }
    flavor = Flavor(vcpus=1, ram_mb=64, disk_gb=1, extra_specs=specs)
    nics = [Nic(port_id=new_id(), mac="fa:16:3e:00:00:01")]
    made = build_domain(tmp_path, guest(image=image(hw_rng_model="virtio"), flavor=flavor, nics=nics))
    assert (made.findtext("cputune/shares"), made.findtext("cputune/quota")) == ("512", "-1")
    assert made.findtext("memtune/hard_limit") == "256"
    assert made.findtext("devices/disk/iotune/write_iops_sec") == "100"
    outbound = made.find("devices/interface/bandwidth/outbound")
    assert outbound is not None
    assert outbound.attrib == {"average": "1000", "burst": "2000"}
    assert attribute(made, "devices/rng/rate", "bytes") == "64"
    with pytest.raises(DriverError, match="quota:cpu_shares"):
        build_domain(
            tmp_path, guest(flavor=Flavor(vcpus=1, ram_mb=64, disk_gb=1, extra_specs={"quota:cpu_shares": "all"}))
        )


def test_volumes_keep_their_device_names(tmp_path: Path) -> None:
    boot, data, unnamed = volume(boot_index=0, device="/dev/vda"), volume(device="/dev/vdc"), volume()
    made = build_domain(tmp_path, guest(disks=[data, unnamed, boot]))
    found = {disk.findtext("serial"): disk for disk in made.findall("devices/disk")}
    assert attribute(found[boot.volume_id], "target", "dev") == "vda"
    assert attribute(found[boot.volume_id], "boot", "order") == "1"
    assert attribute(found[data.volume_id], "target", "dev") == "vdc"
    assert attribute(found[unnamed.volume_id], "target", "dev") == "vdb"
    assert found[data.volume_id].find("boot") is None


def test_local_disks_and_volumes_have_different_names(tmp_path: Path) -> None:
    local = [LocalDisk(size_mb=64), LocalDisk(size_mb=64, format="swap")]
    one = guest(image=image(), local_disks=local, disks=[volume(device="/dev/vdb"), volume(), volume(bus="scsi")])
    names = [attribute(disk, "target", "dev") for disk in build_domain(tmp_path, one).findall("devices/disk")]
    assert len(names) == len(set(names)) == 6


def test_configured_cpu_modes(tmp_path: Path) -> None:
    one = guest(image=image())
    assert attribute(build_domain(tmp_path, one, virt_type="kvm"), "cpu", "mode") == "host-model"
    assert (
        attribute(build_domain(tmp_path, one, virt_type="kvm", cpu_mode="host-passthrough"), "cpu", "mode")
        == "host-passthrough"
    )
    assert build_domain(tmp_path, one, virt_type="kvm", cpu_model="Nehalem").findtext("cpu/model") == "Nehalem"
