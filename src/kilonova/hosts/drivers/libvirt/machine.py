"""What kind of machine a guest is: what the host can do, what its configuration says, what the image asks for."""

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
_WATCHDOGS = ("none", "pause", "poweroff", "reset", "disabled")
_MACHINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_KVM = "/dev/kvm"
_KVM_GET_API_VERSION, _KVM_CREATE_VM = 0xAE00, 0xAE01


@cache
def why_no_kvm() -> str:
    """Why guests cannot have the hardware's help; nothing if they can."""
    if not os.path.exists(_KVM):
        return "there is no /dev/kvm"
    try:
        device = os.open(_KVM, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"/dev/kvm cannot be opened: {error.strerror}"
    try:
        fcntl.ioctl(device, _KVM_GET_API_VERSION, 0)
        os.close(fcntl.ioctl(device, _KVM_CREATE_VM, 0))
    except OSError as error:
        return f"/dev/kvm makes no guests: {error.strerror}"
    finally:
        os.close(device)
    # A device without the processor's features behind it makes guests that do not get far.
    if not {"vmx", "svm"} & processor_flags():
        return "the processor shows no virtualization to this machine (neither vmx nor svm)"
    return ""


@cache
def processor_flags() -> frozenset[str]:
    try:
        found = re.search(r"^flags\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(found.group(1).split()) if found else frozenset()


def virt_type_of(config: Libvirt) -> str:
    return config.virt_type or ("qemu" if why_no_kvm() else "kvm")


class Machine(NamedTuple):
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


def machine_of(config: Libvirt, guest: Guest) -> Machine:
    asked: Mapping[str, str] = guest.properties
    specs = guest.flavor.extra_specs
    virt_type = virt_type_of(config)
    kind = asked.get("hw_machine_type") or config.machine
    if not _MACHINE.fullmatch(kind):
        raise DriverError(f"hw_machine_type {kind!r} is no type of machine")
    has_ide = "q35" not in kind
    disk_bus = _one_of("hw_disk_bus", asked.get("hw_disk_bus", "virtio"), DISK_BUSES)
    video = _one_of("hw_video_model", asked.get("hw_video_model", "vga"), VIDEO_MODELS)
    watchdog = asked.get("hw_watchdog_action") or specs.get("hw:watchdog_action", "disabled")
    watchdog = _one_of("hw_watchdog_action", watchdog, _WATCHDOGS)
    return Machine(
        virt_type=virt_type,
        type=kind,
        cpu_mode=cpu_mode_of(config),
        cpu_model=config.cpu_model or "qemu64",
        topology=_topology(guest, asked),
        disk_bus=disk_bus,
        cdrom_bus=_one_of("hw_cdrom_bus", asked.get("hw_cdrom_bus", "ide" if has_ide else "sata"), CDROM_BUSES),
        scsi_model=_one_of("hw_scsi_model", asked.get("hw_scsi_model", "virtio-scsi"), _SCSI_MODELS),
        nic_model=_one_of("hw_vif_model", asked.get("hw_vif_model", "virtio"), NIC_MODELS),
        queues=min(guest.flavor.vcpus, 8) if is_true(_wish(guest, asked, "vif_multiqueue_enabled")) else 1,
        video=video,
        tablet_bus="usb" if asked.get("hw_pointer_model") == "usbtablet" else "",
        uefi=asked.get("hw_firmware_type") == "uefi",
        boot_menu=is_true(_wish(guest, asked, "boot_menu")),
        agent=is_true(asked.get("hw_qemu_guest_agent")),
        rng=asked.get("hw_rng_model") == "virtio" and is_true(specs.get("hw_rng:allowed", "true")),
        watchdog="" if watchdog == "disabled" else watchdog,
        local_time=asked.get("os_type") == "windows",
    )


def cpu_mode_of(config: Libvirt) -> str:
    if config.cpu_mode:
        return config.cpu_mode
    # Emulated processors have what QEMU gives them, wherever they are.
    return "custom" if config.cpu_model or virt_type_of(config) == "qemu" else "host-model"


def is_true(value: str | None) -> bool:
    return str(value or "").strip().lower() in ("true", "yes", "on", "1", "t", "y")


def _wish(guest: Guest, asked: Mapping[str, str], name: str) -> str | None:
    return guest.flavor.extra_specs.get(f"hw:{name}") or asked.get(f"hw_{name}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise DriverError(f"{name} {value!r} is none of {', '.join(known)}")
    return value


def _topology(guest: Guest, asked: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Sockets, cores and threads that make the number of processors; where two are not said they are found."""
    wishes: list[int | None] = []
    for part in ("sockets", "cores", "threads"):
        value = _wish(guest, asked, f"cpu_{part}")
        if value is not None and not (value.isdigit() and int(value)):
            raise DriverError(f"hw_cpu_{part} {value!r} is not a number above 0")
        wishes.append(int(value) if value is not None else None)
    if wishes == [None, None, None]:
        return None
    sockets, cores, threads = wishes
    threads = threads or 1
    vcpus = guest.flavor.vcpus
    cores = cores or (vcpus // (sockets * threads) if sockets else 1)
    sockets = sockets or vcpus // max(1, cores * threads)
    if sockets * cores * threads != vcpus:
        raise DriverError(f"{sockets} sockets of {cores} cores with {threads} threads each are not {vcpus} processors")
    return sockets, cores, threads
