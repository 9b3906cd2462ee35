"""Builds the libvirt domain XML of a guest, from elements, so that user text is always escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kilonova.hosts.drivers.libvirt import flavor_quotas, shares, vif
from kilonova.hosts.drivers.libvirt import layout as names
from kilonova.hosts.drivers.libvirt.hardware import Hardware, guest_hardware
from kilonova.hosts.messages import Disk, Guest, Nic

if TYPE_CHECKING:
    from kilonova.hosts.drivers.libvirt.disks import DiskFile
    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

NAMESPACE = "https://kilonova.dev/domain/1"
AGENT_CHANNEL = "org.qemu.guest_agent.0"

ET.register_namespace("kilonova", NAMESPACE)

# Characters that XML cannot represent.
_INVALID_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def domain_xml(hv: Hypervisor, guest: Guest, *, files: Sequence[DiskFile] | None = None) -> str:
    """`files`: the local disks; None for the result of `disks.disk_files`, with the rescue disk during a rescue."""
    return ET.tostring(domain_element(hv, guest, files=files), encoding="unicode")


def domain_element(hv: Hypervisor, guest: Guest, *, files: Sequence[DiskFile] | None = None) -> ET.Element:
    from kilonova.hosts.drivers.libvirt import disks, rescue

    machine = guest_hardware(hv.config.libvirt, guest)
    rescued = rescue.read_mode(hv.layout, guest.id)
    if files is None:
        files = disks.disk_files(guest, hv.config.libvirt.machine_type, rescued)
    # In an unstable rescue the guest's local disks take the device names of the volumes.
    attached = guest.disks if rescued is None or rescued.stable else []
    domain = ET.Element("domain", type=machine.virt_type)
    _text(domain, "name", domain_name(guest.id))
    _text(domain, "uuid", guest.id)
    domain.append(_metadata(guest))
    _text(domain, "memory", guest.flavor.ram_mb, unit="MiB")
    _text(domain, "vcpu", guest.flavor.vcpus, placement="static")
    flavor_quotas.apply_to_domain(domain, guest)
    shares.add_to_domain(domain, guest)
    domain.append(_os(hv, guest, machine))
    domain.append(_sysinfo(guest))
    domain.append(_features())
    domain.append(machine.cpu())
    domain.append(machine.clock())
    for event, action in (("on_poweroff", "destroy"), ("on_reboot", "restart"), ("on_crash", "destroy")):
        _text(domain, event, action)
    devices = ET.SubElement(domain, "devices")
    devices.extend(_disks(hv, guest, machine, files, attached))
    devices.extend([nic_element(hv, guest, nic) for nic in guest.nics])
    devices.extend(shares.elements(hv, guest))
    devices.extend(_controllers(devices, machine))
    devices.extend(_other_devices(hv, guest, machine))
    return domain


def domain_name(guest_id: str) -> str:
    from kilonova.hosts.drivers.libvirt.hypervisor import DOMAIN_PREFIX

    return DOMAIN_PREFIX + guest_id


def choose_target(device: str, bus: str, taken: Iterable[str]) -> str:
    """The target name on the bus for a device such as `/dev/vdb`; the first free name without a usable device name."""
    from kilonova.hosts.drivers.libvirt.disks import PREFIXES, device_names

    prefix = PREFIXES.get(bus, "sd")
    used = set(taken)
    letters = re.sub(r"^(/dev/)?(xvd|vd|sd|hd|fd)(?=[a-z]+$)", "", device)
    if device and letters != device and prefix + letters not in used:
        return prefix + letters
    return next(name for name in device_names(prefix) if name not in used)


def nic_element(hv: Hypervisor, guest: Guest, nic: Nic) -> ET.Element:
    """The interface of a port, connected as Neutron has bound it, or to the built-in bridge of its network."""
    machine = guest_hardware(hv.config.libvirt, guest)
    interface = ET.Element("interface", type="bridge")
    ET.SubElement(interface, "mac", address=nic.mac)
    ET.SubElement(interface, "model", type=machine.nic_model)
    if machine.queues > 1:
        ET.SubElement(interface, "driver", queues=str(machine.queues))
    if nic.vif_type:
        vif.connect(interface, vif.read(nic), machine.nic_model)
    else:
        networks = hv.built_in_networks()
        ET.SubElement(interface, "source", bridge=networks.bridge_of(nic.network_id))
        ET.SubElement(interface, "target", dev=networks.tap_of(nic.port_id))
        ET.SubElement(interface, "mtu", size=str(networks.mtu_of(nic.network_id)))
    flavor_quotas.apply_to_nic(interface, guest)
    ET.SubElement(interface, "alias", name=nic_alias(nic.port_id))
    return interface


def nic_alias(port_id: str) -> str:
    """libvirt requires the prefix `ua-` for user-defined aliases."""
    return f"ua-{port_id}"


# Parts


def _metadata(guest: Guest) -> ET.Element:
    """Information for operators who inspect the domain."""
    metadata = ET.Element("metadata")
    server = ET.SubElement(metadata, f"{{{NAMESPACE}}}server")
    for key, value in (("name", guest.name), ("project", guest.project_id), ("flavor", guest.flavor.name)):
        _text(server, f"{{{NAMESPACE}}}{key}", value)
    if guest.image is not None:
        _text(server, f"{{{NAMESPACE}}}image", guest.image.id)
    return metadata


def _os(hv: Hypervisor, guest: Guest, machine: Hardware) -> ET.Element:
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
    hv: Hypervisor, guest: Guest, machine: Hardware, files: Sequence[DiskFile], attached: Sequence[Disk]
) -> list[ET.Element]:
    """Local disks first, then volumes."""
    from kilonova.hosts.drivers.libvirt import volumes

    found = [_disk_file(hv, guest, file) for file in files]
    taken = {file.target for file in files}
    order = max((file.boot or 0 for file in files), default=0)
    for disk in sorted(attached, key=_boot_order):
        bus = disk.bus or machine.disk_bus
        name = choose_target(disk.device, bus, taken)
        taken.add(name)
        element = volumes.disk_element(disk, name, bus)
        if _is_bootable(disk) and element.find("boot") is None:
            order += 1
            ET.SubElement(element, "boot", order=str(order))
        found.append(element)
    return found


def _is_bootable(disk: Disk) -> bool:
    return disk.boot_index is not None and disk.boot_index >= 0


def _boot_order(disk: Disk) -> tuple[bool, int, bool]:
    """Sort key. Disks with a device name come first, because the others get the remaining names."""
    return not _is_bootable(disk), disk.boot_index or 0, not disk.device


def _disk_file(hv: Hypervisor, guest: Guest, file: DiskFile) -> ET.Element:
    disk = ET.Element("disk", type="file", device=file.device)
    driver = ET.SubElement(disk, "driver", name="qemu", type=file.format)
    ET.SubElement(disk, "source", file=str(hv.layout.file(guest.id, file.name)))
    ET.SubElement(disk, "target", dev=file.target, bus=file.bus)
    if file.device == "disk":
        driver.set("cache", hv.config.libvirt.cache_mode)
        driver.set("discard", "unmap")
        flavor_quotas.apply_to_disk(disk, guest)
    else:
        ET.SubElement(disk, "readonly")
    if file.boot is not None:
        ET.SubElement(disk, "boot", order=str(file.boot))
    return disk


def _controllers(devices: ET.Element, machine: Hardware) -> list[ET.Element]:
    buses = {bus.get("bus") for bus in devices.findall("disk/target")}
    if "scsi" not in buses:
        return []
    return [ET.Element("controller", type="scsi", index="0", model=machine.scsi_model)]


def _other_devices(hv: Hypervisor, guest: Guest, machine: Hardware) -> list[ET.Element]:
    found = [_serial(hv, guest)]
    if machine.agent:
        channel = ET.Element("channel", type="unix")
        ET.SubElement(channel, "target", type="virtio", name=AGENT_CHANNEL)
        found.append(channel)
    if machine.tablet_bus:
        found.append(ET.Element("input", type="tablet", bus=machine.tablet_bus))
    if machine.video != "none":
        graphics = ET.Element("graphics", type="vnc")
        ET.SubElement(graphics, "listen", type="none")
        video = ET.Element("video")
        ET.SubElement(video, "model", type=machine.video)
        found += [graphics, video]
    if machine.watchdog:
        found.append(ET.Element("watchdog", model="i6300esb", action=machine.watchdog))
    if machine.rng:
        rng = ET.Element("rng", model="virtio")
        _text(rng, "backend", "/dev/urandom", model="random")
        flavor_quotas.apply_to_rng(rng, guest)
        found.append(rng)
    balloon = ET.Element("memballoon", model="virtio")
    ET.SubElement(balloon, "stats", period="10")
    return [*found, balloon]


def _serial(hv: Hypervisor, guest: Guest) -> ET.Element:
    serial = ET.Element("serial", type="pty")
    ET.SubElement(serial, "log", file=str(hv.layout.file(guest.id, names.CONSOLE_LOG)), append="on")
    ET.SubElement(serial, "target", port="0")
    return serial


def _sysinfo(guest: Guest) -> ET.Element:
    """cloud-init recognizes OpenStack metadata by the product name."""
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
    child.text = _INVALID_XML.sub("\N{REPLACEMENT CHARACTER}", str(value))
    return child
