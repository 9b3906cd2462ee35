"""The domain of a guest as libvirt wants it told: built of elements, so that nothing a user names can become markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt import limits
from kilonova.hosts.drivers.libvirt.machine import Machine, machine_of
from kilonova.hosts.messages import Disk, Guest, Nic

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.disks import DiskFile
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

NAMESPACE = "https://kilonova.dev/domain/1"
AGENT_CHANNEL = "org.qemu.guest_agent.0"

ET.register_namespace("kilonova", NAMESPACE)

# What XML cannot say at all.
_UNSPEAKABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(hv: Hypervisor, guest: Guest, *, files: Sequence[DiskFile] | None = None) -> str:
    """`files`: the disks of its directory; None are those that `disks.files` tells, in rescue if it is."""
    return ET.tostring(element(hv, guest, files=files), encoding="unicode")


def element(hv: Hypervisor, guest: Guest, *, files: Sequence[DiskFile] | None = None) -> ET.Element:
    from kilonova.hosts.drivers.libvirt import disks, rescue

    machine = machine_of(hv.config.libvirt, guest)
    rescued = rescue.variation(hv.layout, guest.id)
    if files is None:
        files = disks.files(guest, hv.config.libvirt.machine, rescued)
    # Where the disk to rescue from takes the place of the root, the others take those of volumes.
    attached = guest.disks if rescued is None or rescued.stable else []
    domain = ET.Element("domain", type=machine.virt_type)
    _text(domain, "name", domain_name(guest.id))
    _text(domain, "uuid", guest.id)
    domain.append(_metadata(guest))
    _text(domain, "memory", guest.flavor.ram_mb, unit="MiB")
    _text(domain, "vcpu", guest.flavor.vcpus, placement="static")
    limits.apply(domain, guest)
    domain.append(_os(hv, guest, machine))
    domain.append(_sysinfo(guest))
    domain.append(_features())
    domain.append(machine.cpu())
    domain.append(machine.clock())
    for what, then in (("on_poweroff", "destroy"), ("on_reboot", "restart"), ("on_crash", "destroy")):
        _text(domain, what, then)
    devices = ET.SubElement(domain, "devices")
    devices.extend(_disks(hv, guest, machine, files, attached))
    devices.extend(nic(hv, guest, one) for one in guest.nics)
    devices.extend(_controllers(devices, machine))
    devices.extend(_others(hv, guest, machine))
    return domain


def domain_name(guest_id: str) -> str:
    from kilonova.hosts.drivers.libvirt.hypervisor import PREFIX

    return PREFIX + guest_id


def target(device: str, bus: str, taken: Iterable[str]) -> str:
    """What the bus calls a device that the control plane calls `/dev/vdb`; the first free name if it has none."""
    from kilonova.hosts.drivers.libvirt.disks import PREFIXES, device_names

    prefix = PREFIXES.get(bus, "sd")
    used = set(taken)
    letters = re.sub(r"^(/dev/)?(xvd|vd|sd|hd|fd)(?=[a-z]+$)", "", device)
    if device and letters != device and prefix + letters not in used:
        return prefix + letters
    return next(name for name in device_names(prefix) if name not in used)


def nic(hv: Hypervisor, guest: Guest, one: Nic) -> ET.Element:
    """The interface of a port, on the bridge of its network."""
    if hv.wiring is None:
        raise DriverError(f"{hv.host} has no networks for guests: bridges.enabled is off")
    machine = machine_of(hv.config.libvirt, guest)
    interface = ET.Element("interface", type="bridge")
    ET.SubElement(interface, "mac", address=one.mac)
    ET.SubElement(interface, "source", bridge=hv.wiring.bridge_of(one.network_id))
    ET.SubElement(interface, "target", dev=hv.wiring.tap_of(one.port_id))
    ET.SubElement(interface, "model", type=machine.nic_model)
    if machine.queues > 1:
        ET.SubElement(interface, "driver", queues=str(machine.queues))
    ET.SubElement(interface, "mtu", size=str(hv.wiring.mtu_of(one.network_id)))
    limits.apply_to_nic(interface, guest)
    ET.SubElement(interface, "alias", name=nic_alias(one.port_id))
    return interface


def nic_alias(port_id: str) -> str:
    """libvirt's name for the device; those that are given to it begin so."""
    return f"ua-{port_id}"


# Parts


def _metadata(guest: Guest) -> ET.Element:
    """For people who look at the domain; nothing is read from here but the name."""
    metadata = ET.Element("metadata")
    server = ET.SubElement(metadata, f"{{{NAMESPACE}}}server")
    for key, value in (("name", guest.name), ("project", guest.project_id), ("flavor", guest.flavor.name)):
        _text(server, f"{{{NAMESPACE}}}{key}", value)
    if guest.image is not None:
        _text(server, f"{{{NAMESPACE}}}image", guest.image.id)
    return metadata


def _os(hv: Hypervisor, guest: Guest, machine: Machine) -> ET.Element:
    os = ET.Element("os", firmware="efi") if machine.uefi else ET.Element("os")
    _text(os, "type", "hvm", arch="x86_64", machine=machine.type)
    if machine.uefi:
        firmware = ET.SubElement(os, "firmware")
        ET.SubElement(firmware, "feature", enabled="no", name="secure-boot")
        _text(os, "nvram", str(hv.layout.file(guest.id, names.NVRAM)))
    if machine.boot_menu:
        ET.SubElement(os, "bootmenu", enable="yes")
    ET.SubElement(os, "smbios", mode="sysinfo")
    return os


def _features() -> ET.Element:
    features = ET.Element("features")
    for feature in ("acpi", "apic"):
        ET.SubElement(features, feature)
    return features


def _disks(
    hv: Hypervisor, guest: Guest, machine: Machine, files: Sequence[DiskFile], attached: Sequence[Disk]
) -> list[ET.Element]:
    """Those of its directory first, then volumes."""
    from kilonova.hosts.drivers.libvirt import volumes

    found = [_file(hv, guest, file) for file in files]
    taken = {file.target for file in files}
    order = max((file.boot or 0 for file in files), default=0)
    for disk in sorted(attached, key=_boot_order):
        bus = disk.bus or machine.disk_bus
        name = target(disk.device, bus, taken)
        taken.add(name)
        one = volumes.element(disk, name, bus)
        if _boots(disk) and one.find("boot") is None:
            order += 1
            ET.SubElement(one, "boot", order=str(order))
        found.append(one)
    return found


def _boots(disk: Disk) -> bool:
    return disk.boot_index is not None and disk.boot_index >= 0


def _boot_order(disk: Disk) -> tuple[bool, int, bool]:
    """Those that have names before those that get what is left."""
    return not _boots(disk), disk.boot_index or 0, not disk.device


def _file(hv: Hypervisor, guest: Guest, file: DiskFile) -> ET.Element:
    disk = ET.Element("disk", type="file", device=file.device)
    driver = ET.SubElement(disk, "driver", name="qemu", type=file.format)
    ET.SubElement(disk, "source", file=str(hv.layout.file(guest.id, file.name)))
    ET.SubElement(disk, "target", dev=file.target, bus=file.bus)
    if file.device == "disk":
        driver.set("cache", hv.config.libvirt.cache_mode)
        driver.set("discard", "unmap")
        limits.apply_to_disk(disk, guest)
    else:
        ET.SubElement(disk, "readonly")
    if file.boot is not None:
        ET.SubElement(disk, "boot", order=str(file.boot))
    return disk


def _controllers(devices: ET.Element, machine: Machine) -> list[ET.Element]:
    buses = {bus.get("bus") for bus in devices.findall("disk/target")}
    if "scsi" not in buses:
        return []
    return [ET.Element("controller", type="scsi", index="0", model=machine.scsi_model)]


def _others(hv: Hypervisor, guest: Guest, machine: Machine) -> list[ET.Element]:
    found = [_serial(hv, guest)]
    if machine.agent:
        channel = ET.Element("channel", type="unix")
        ET.SubElement(channel, "target", type="virtio", name=AGENT_CHANNEL)
        found.append(channel)
    if machine.tablet_bus:
        found.append(ET.Element("input", type="tablet", bus=machine.tablet_bus))
    if machine.video != "none":
        graphics = ET.Element("graphics", type="vnc", autoport="yes", listen=hv.config.libvirt.vnc_listen)
        video = ET.Element("video")
        ET.SubElement(video, "model", type=machine.video)
        found += [graphics, video]
    if machine.watchdog:
        found.append(ET.Element("watchdog", model="i6300esb", action=machine.watchdog))
    if machine.rng:
        rng = ET.Element("rng", model="virtio")
        _text(rng, "backend", "/dev/urandom", model="random")
        limits.apply_to_rng(rng, guest)
        found.append(rng)
    balloon = ET.Element("memballoon", model="virtio")
    ET.SubElement(balloon, "stats", period="10")
    return [*found, balloon]


def _serial(hv: Hypervisor, guest: Guest) -> ET.Element:
    serial = ET.Element("serial", type="pty")
    ET.SubElement(serial, "log", file=str(hv.layout.file(guest.id, names.CONSOLE)), append="on")
    ET.SubElement(serial, "target", port="0")
    return serial


def _sysinfo(guest: Guest) -> ET.Element:
    """By the product's name systems in guests recognise what kind of metadata they may expect."""
    sysinfo = ET.Element("sysinfo", type="smbios")
    system = ET.SubElement(sysinfo, "system")
    for name, value in (
        ("manufacturer", "Kilonova"),
        ("product", "OpenStack Compute"),
        ("serial", guest.id),
        ("uuid", guest.id),
        ("family", "Virtual Machine"),
    ):
        _text(system, "entry", value).set("name", name)
    return sysinfo


def _text(parent: ET.Element, name: str, value: object, **attributes: str) -> ET.Element:
    child = ET.SubElement(parent, name, attributes)
    child.text = _UNSPEAKABLE.sub("\N{REPLACEMENT CHARACTER}", str(value))
    return child
