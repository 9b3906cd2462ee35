"""The virtual hardware of a guest, from image properties, flavor extra specs and the host's configuration."""

from __future__ import annotations

import fcntl
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import Guest

if TYPE_CHECKING:
    from kilonova.config import Libvirt

DISK_BUSES = ("virtio", "scsi", "sata", "ide", "usb")
CDROM_BUSES = ("ide", "sata", "scsi", "virtio", "usb")
NIC_MODELS = ("virtio", "e1000", "e1000e", "rtl8139", "ne2k_pci", "pcnet")
VIDEO_MODELS = ("vga", "cirrus", "qxl", "virtio", "bochs", "none")
_SCSI_MODELS = ("virtio-scsi", "lsilogic", "buslogic", "lsisas1068", "lsisas1078", "vmpvscsi")
_WATCHDOG_ACTIONS = ("none", "pause", "poweroff", "reset", "disabled")
_MACHINE_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_KVM = "/dev/kvm"
_KVM_GET_API_VERSION, _KVM_CREATE_VM = 0xAE00, 0xAE01


@cache
def kvm_problem() -> str:
    """Why this host cannot use KVM; empty if it can."""
    if not os.path.exists(_KVM):
        return "/dev/kvm does not exist"
    try:
        device = os.open(_KVM, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"/dev/kvm cannot be opened: {error.strerror}"
    try:
        fcntl.ioctl(device, _KVM_GET_API_VERSION, 0)
        os.close(fcntl.ioctl(device, _KVM_CREATE_VM, 0))
    except OSError as error:
        return f"/dev/kvm cannot create a VM: {error.strerror}"
    finally:
        os.close(device)
    # Without these CPU flags /dev/kvm creates VMs that fail soon after their start.
    if not {"vmx", "svm"} & cpu_flags():
        return "the CPU has no virtualization extension (neither vmx nor svm)"
    return ""


@cache
def cpu_flags() -> frozenset[str]:
    try:
        found = re.search(r"^flags\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(found.group(1).split()) if found else frozenset()


def get_virt_type(config: Libvirt) -> str:
    return config.virt_type or ("qemu" if kvm_problem() else "kvm")


class Hardware(NamedTuple):
    virt_type: str
    type: str
    cpu_mode: str
    cpu_model: str
    topology: tuple[int, int, int] | None
    disk_bus: str
    cdrom_bus: str
    scsi_model: str
    nic_model: str
    queues: int
    video: str
    tablet_bus: str
    uefi: bool
    boot_menu: bool
    agent: bool
    rng: bool
    watchdog: str
    local_time: bool

    def cpu(self) -> ET.Element:
        cpu = ET.Element("cpu")
        if self.cpu_mode == "custom":
            cpu = ET.Element("cpu", mode="custom", match="exact", check="none")
            model = ET.SubElement(cpu, "model", fallback="allow")
            model.text = self.cpu_model
        elif self.cpu_mode != "none":
            cpu = ET.Element("cpu", mode=self.cpu_mode, check="none")
        if self.topology is not None:
            sockets, cores, threads = map(str, self.topology)
            ET.SubElement(cpu, "topology", sockets=sockets, cores=cores, threads=threads)
        return cpu

    def clock(self) -> ET.Element:
        clock = ET.Element("clock", offset="localtime" if self.local_time else "utc")
        if self.virt_type == "kvm":
            ET.SubElement(clock, "timer", name="pit", tickpolicy="delay")
            ET.SubElement(clock, "timer", name="rtc", tickpolicy="catchup")
            ET.SubElement(clock, "timer", name="hpet", present="no")
        return clock


def guest_hardware(config: Libvirt, guest: Guest) -> Hardware:
    properties: Mapping[str, str] = guest.properties
    specs = guest.flavor.extra_specs
    virt_type = get_virt_type(config)
    machine_type = properties.get("hw_machine_type") or config.machine_type
    if not _MACHINE_TYPE.fullmatch(machine_type):
        raise DriverError(f"hw_machine_type {machine_type!r} is not a machine type")
    has_ide = "q35" not in machine_type
    disk_bus = _one_of("hw_disk_bus", properties.get("hw_disk_bus", "virtio"), DISK_BUSES)
    video = _one_of("hw_video_model", properties.get("hw_video_model", "vga"), VIDEO_MODELS)
    watchdog = properties.get("hw_watchdog_action") or specs.get("hw:watchdog_action", "disabled")
    watchdog = _one_of("hw_watchdog_action", watchdog, _WATCHDOG_ACTIONS)
    return Hardware(
        virt_type=virt_type,
        type=machine_type,
        cpu_mode=get_cpu_mode(config),
        cpu_model=config.cpu_model or "qemu64",
        topology=_topology(guest, properties),
        disk_bus=disk_bus,
        cdrom_bus=_one_of("hw_cdrom_bus", properties.get("hw_cdrom_bus", "ide" if has_ide else "sata"), CDROM_BUSES),
        scsi_model=_one_of("hw_scsi_model", properties.get("hw_scsi_model", "virtio-scsi"), _SCSI_MODELS),
        nic_model=_one_of("hw_vif_model", properties.get("hw_vif_model", "virtio"), NIC_MODELS),
        queues=min(guest.flavor.vcpus, 8)
        if is_true(_flavor_or_image(guest, properties, "vif_multiqueue_enabled"))
        else 1,
        video=video,
        tablet_bus="usb" if properties.get("hw_pointer_model") == "usbtablet" else "",
        uefi=properties.get("hw_firmware_type") == "uefi",
        boot_menu=is_true(_flavor_or_image(guest, properties, "boot_menu")),
        agent=is_true(properties.get("hw_qemu_guest_agent")),
        rng=properties.get("hw_rng_model") == "virtio" and is_true(specs.get("hw_rng:allowed", "true")),
        watchdog="" if watchdog == "disabled" else watchdog,
        local_time=properties.get("os_type") == "windows",
    )


def get_cpu_mode(config: Libvirt) -> str:
    if config.cpu_mode:
        return config.cpu_mode
    # An emulated CPU model does not depend on the host's CPU.
    return "custom" if config.cpu_model or get_virt_type(config) == "qemu" else "host-model"


def is_true(value: str | None) -> bool:
    return str(value or "").strip().lower() in ("true", "yes", "on", "1", "t", "y")


def _flavor_or_image(guest: Guest, properties: Mapping[str, str], name: str) -> str | None:
    return guest.flavor.extra_specs.get(f"hw:{name}") or properties.get(f"hw_{name}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise DriverError(f"{name} is {value!r}, not one of {', '.join(known)}")
    return value


def _topology(guest: Guest, properties: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Sockets, cores and threads, derived from the number of vCPUs where not requested; None if none is requested."""
    requested: list[int | None] = []
    for part in ("sockets", "cores", "threads"):
        value = _flavor_or_image(guest, properties, f"cpu_{part}")
        if value is not None and not (value.isdigit() and int(value)):
            raise DriverError(f"hw_cpu_{part} is {value!r}, not a positive number")
        requested.append(int(value) if value is not None else None)
    if requested == [None, None, None]:
        return None
    sockets, cores, threads = requested
    threads = threads or 1
    vcpus = guest.flavor.vcpus
    cores = cores or (vcpus // (sockets * threads) if sockets else 1)
    sockets = sockets or vcpus // max(1, cores * threads)
    if sockets * cores * threads != vcpus:
        raise DriverError(f"{sockets} sockets with {cores} cores and {threads} threads each do not make {vcpus} vCPUs")
    return sockets, cores, threads
