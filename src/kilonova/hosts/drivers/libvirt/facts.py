"""Describes the host: inventory, traits and addresses."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kilonova.hosts.drivers.libvirt.hardware import DISK_BUSES, NIC_MODELS, VIDEO_MODELS, cpu_flags, get_virt_type
from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor
from kilonova.hosts.messages import HostFacts, Inventory

if TYPE_CHECKING:
    import libvirt

    from kilonova.config import Libvirt

HYPERVISOR_TYPE = "QEMU"
_GIB = 1 << 30

# Traits of every host of this driver.
_TRAITS = frozenset(
    {
        "COMPUTE_NODE",
        "COMPUTE_ARCH_X86_64",
        "COMPUTE_DEVICE_TAGGING",
        "COMPUTE_FIRMWARE_BIOS",
        "COMPUTE_IMAGE_TYPE_ISO",
        "COMPUTE_IMAGE_TYPE_QCOW2",
        "COMPUTE_IMAGE_TYPE_RAW",
        "COMPUTE_NET_ATTACH_INTERFACE",
        "COMPUTE_NET_ATTACH_INTERFACE_WITH_TAG",
        "COMPUTE_REBUILD_BFV",
        "COMPUTE_RESCUE_BFV",
        "COMPUTE_SAME_HOST_COLD_MIGRATE",
        "COMPUTE_VOLUME_ATTACH",
        "COMPUTE_VOLUME_ATTACH_WITH_TAG",
        "COMPUTE_VOLUME_EXTEND",
        "COMPUTE_VOLUME_MULTI_ATTACH",
    }
)
_CONVERTED = {"vmdk": "COMPUTE_IMAGE_TYPE_VMDK", "vdi": "COMPUTE_IMAGE_TYPE_VDI", "vhd": "COMPUTE_IMAGE_TYPE_VHD"}
_CONVERTED |= {"vhdx": "COMPUTE_IMAGE_TYPE_VHDX"}
# CPU flags of the kernel whose traits have other names.
_CPU_FLAG_TRAITS = {
    "abm": ("ABM",),
    "aes": ("AESNI",),
    "bmi1": ("BMI",),
    "fma": ("FMA3",),
    "pclmulqdq": ("CLMUL",),
    "pni": ("SSE3",),
    "sha_ni": ("SHA",),
    "svm": ("SVM", "AMD_SVM"),
    "vmx": ("VMX", "INTEL_VMX"),
}


async def describe(hv: Hypervisor) -> HostFacts:
    config = hv.config
    # Some libvirts take long to list their capabilities.
    version, capabilities, domain = await hv.connection.call_once(_query_libvirt, get_virt_type(config.libvirt))
    return HostFacts(
        host=hv.host,
        # Not libvirt's name: it comes from a DNS lookup, which may be slow and return other names later.
        hypervisor_hostname=hv.host,
        hypervisor_type=HYPERVISOR_TYPE,
        hypervisor_version=version,
        host_ip=config.agent.address,
        cpu_info=_cpu_info(capabilities),
        inventory=_inventory(hv),
        traits=sorted(_traits(config.libvirt, capabilities, domain)),
        booted_at=booted_at(),
        addresses=peer_addresses(hv),
        networked=hv.networks is not None,
    )


def peer_addresses(hv: Hypervisor) -> dict[str, str]:
    """Addresses of this host for other hosts, by purpose."""
    config, address = hv.config.libvirt, hv.config.agent.address
    found = {
        "migration": config.migration_uri.replace("{address}", address),
        "guests": config.migration_address or address,
        "disks": hv.disks_url,
    }
    return {purpose: address for purpose, address in found.items() if address}


async def connector(hv: Hypervisor) -> dict[str, Any]:
    """The volume connector. `kilonova_nbd`: this host's QEMU connects to volumes over NBD."""
    return {
        "host": hv.host,
        "ip": hv.config.agent.address,
        "platform": os.uname().machine,
        "os_type": "linux",
        "multipath": False,
        "kilonova_nbd": True,
        **await hv.volumes.connections.properties(),
    }


def booted_at() -> float | None:
    for line in _lines("/proc/stat"):
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


# Inventory


def _inventory(hv: Hypervisor) -> dict[str, Inventory]:
    config = hv.config.libvirt
    vcpus = os.cpu_count() or 1
    memory = memory_mb()
    hv.layout.root.mkdir(mode=0o711, parents=True, exist_ok=True)
    disk = os.statvfs(hv.layout.root)
    disk_gb = disk.f_blocks * disk.f_frsize // _GIB
    return {
        "VCPU": Inventory(total=vcpus, max_unit=vcpus, allocation_ratio=config.cpu_allocation_ratio),
        "MEMORY_MB": Inventory(
            total=memory,
            reserved=min(config.reserved_memory_mb, memory),
            max_unit=memory,
            allocation_ratio=config.ram_allocation_ratio,
        ),
        "DISK_GB": Inventory(
            total=disk_gb,
            reserved=min(config.reserved_disk_gb, disk_gb),
            max_unit=disk_gb,
            allocation_ratio=config.disk_allocation_ratio,
        ),
    }


def memory_mb() -> int:
    """Read from the kernel, because libvirt's number is wrong in some virtual machines."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20)


# Traits


def _traits(config: Libvirt, capabilities: ET.Element, domain: ET.Element) -> set[str]:
    from kilonova.hosts.drivers.libvirt import formats, shares

    found = set(_TRAITS)
    found |= {trait for format, trait in _CONVERTED.items() if format in formats.CONVERTED}
    found |= {f"COMPUTE_STORAGE_BUS_{bus.upper()}" for bus in DISK_BUSES}
    found |= {f"COMPUTE_NET_VIF_MODEL_{model.upper()}" for model in NIC_MODELS}
    supported = {value.text for value in domain.findall("devices/video/enum[@name='modelType']/value")}
    found |= {f"COMPUTE_GRAPHICS_MODEL_{model.upper()}" for model in VIDEO_MODELS if model in supported}
    if any(value.text == "efi" for value in domain.findall("os/enum[@name='firmware']/value")):
        found.add("COMPUTE_FIRMWARE_UEFI")
    if shares.daemon() is not None and domain.find("memoryBacking[@supported='yes']") is not None:
        found |= {"COMPUTE_STORAGE_VIRTIO_FS", "COMPUTE_MEM_BACKING_FILE"}
    if config.auto_converge:
        found.add("COMPUTE_MIGRATE_AUTO_CONVERGE")
    if config.force_complete == "postcopy":
        found.add("COMPUTE_MIGRATE_POST_COPY")
    return found | _cpu_traits(config)


def _cpu_traits(config: Libvirt) -> set[str]:
    """Only with KVM do guests see the features of the host's CPU."""
    return cpu_traits(cpu_flags()) if get_virt_type(config) == "kvm" else set()


def cpu_traits(flags: Iterable[str]) -> set[str]:
    found = {
        f"HW_CPU_X86_{name}" for flag in flags for name in _CPU_FLAG_TRAITS.get(flag, (flag.replace("_", "").upper(),))
    }
    return found & _known_traits()


@cache
def _known_traits() -> frozenset[str]:
    import os_traits

    return frozenset(os_traits.get_traits())


def _cpu_info(capabilities: ET.Element) -> dict[str, Any]:
    cpu = capabilities.find("host/cpu")
    topology = cpu.find("topology") if cpu is not None else None
    sizes = topology.attrib if topology is not None else {}
    return {
        "arch": _text(capabilities, "host/cpu/arch"),
        "model": _text(capabilities, "host/cpu/model"),
        "vendor": _text(capabilities, "host/cpu/vendor"),
        "features": sorted(cpu_flags()),
        "topology": {part: int(sizes[part]) for part in ("sockets", "dies", "cores", "threads") if part in sizes},
    }


def _text(element: ET.Element, path: str) -> str:
    return element.findtext(path) or ""


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _query_libvirt(connection: libvirt.virConnect, virt_type: str) -> tuple[int, ET.Element, ET.Element]:
    capabilities = ET.fromstring(connection.getCapabilities())
    domain = ET.fromstring(connection.getDomainCapabilities(None, "x86_64", None, virt_type, 0))
    return connection.getVersion(), capabilities, domain
