"""Facts that a simulated host reports about itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kilonova.hosts.drivers.sim.shapes import Shape, arch_traits, to_inventory
from kilonova.hosts.drivers.sim.store import Size
from kilonova.hosts.messages import HostFacts, Inventory, SharingProvider

RESERVED_MEMORY_MB = 512
CPU_ALLOCATION_RATIO = 4.0
HYPERVISOR_TYPE = "kilonova-sim"
HYPERVISOR_VERSION = 1_000_000  # 1.0.0 in libvirt's numbering

ARCH = "x86_64"
TRAITS = [
    "COMPUTE_NODE",
    "COMPUTE_FIRMWARE_BIOS",
    "COMPUTE_FIRMWARE_UEFI",
    "COMPUTE_IMAGE_TYPE_ISO",
    "COMPUTE_IMAGE_TYPE_QCOW2",
    "COMPUTE_IMAGE_TYPE_RAW",
    "COMPUTE_NET_VIF_MODEL_E1000",
    "COMPUTE_NET_VIF_MODEL_VIRTIO",
    "COMPUTE_STORAGE_BUS_SCSI",
    "COMPUTE_STORAGE_BUS_VIRTIO",
    "COMPUTE_REBUILD_BFV",
    "COMPUTE_RESCUE_BFV",
    "COMPUTE_VOLUME_ATTACH_WITH_TAG",
    "COMPUTE_DEVICE_TAGGING",
    "COMPUTE_VOLUME_EXTEND",
    "COMPUTE_VOLUME_MULTI_ATTACH",
    "COMPUTE_STORAGE_VIRTIO_FS",
    "COMPUTE_MEM_BACKING_FILE",
]
X86_TRAITS = ["HW_CPU_X86_SSE42", "HW_CPU_X86_VMX"]

_DEFAULT_SHAPE = Shape(name="plain")
_CPU_CLASSES = {"VCPU", "PCPU"}


class Hardware(msgspec.Struct, frozen=True):
    """The hardware of a simulated host. A shape replaces the default inventory; `sharing`: its sharing providers."""

    size: Size = Size()
    shape: Shape | None = None
    sharing: Sequence[SharingProvider] = ()


def host_facts(host: str, hardware: Hardware, booted_at: float | None = None) -> HostFacts:
    shape = hardware.shape or _DEFAULT_SHAPE
    return HostFacts(
        host=host,
        hypervisor_hostname=host,
        hypervisor_type=shape.hypervisor_type or HYPERVISOR_TYPE,
        hypervisor_version=shape.hypervisor_version or HYPERVISOR_VERSION,
        host_ip="127.0.0.1",
        cpu_info=_cpu_info(hardware.size, shape),
        inventory=to_inventory(shape.inventory) if hardware.shape else _inventory(hardware.size),
        traits=_traits(shape),
        nested=shape.providers(),
        sharing=list(hardware.sharing),
        booted_at=booted_at,
    )


def _inventory(size: Size) -> dict[str, Inventory]:
    return {
        "VCPU": Inventory(total=size.vcpus, max_unit=size.vcpus, allocation_ratio=CPU_ALLOCATION_RATIO),
        "MEMORY_MB": Inventory(
            total=size.memory_mb, max_unit=size.memory_mb, reserved=min(RESERVED_MEMORY_MB, size.memory_mb)
        ),
        "DISK_GB": Inventory(total=size.disk_gb, max_unit=size.disk_gb),
    }


def _traits(shape: Shape) -> list[str]:
    traits = [*TRAITS, *arch_traits(shape.arch), *(X86_TRAITS if shape.arch == ARCH else ()), *shape.traits]
    return [trait for trait in dict.fromkeys(traits) if trait not in shape.without_traits]


def _cpu_info(size: Size, shape: Shape) -> dict[str, Any]:
    cells = sum(not _CPU_CLASSES.isdisjoint(provider.inventory) for provider in shape.providers()) or 1
    cores = max(1, size.vcpus // cells)
    model = {"model": "Nehalem", "vendor": "Intel", "features": ["sse4.2", "vmx"]} if shape.arch == ARCH else {}
    topology = {"cells": cells, "sockets": 1, "cores": cores, "threads": 1}
    return {"arch": shape.arch, **model, "topology": topology, **shape.cpu_info}


def connector(host: str) -> dict[str, Any]:
    """The host's connector properties for the volume service."""
    return {
        "host": host,
        "ip": "127.0.0.1",
        "initiator": f"iqn.2026-01.dev.kilonova:{host}",
        "platform": ARCH,
        "os_type": "linux",
        "multipath": False,
    }


def shared_disk_stores(hardware: Hardware | None) -> set[str]:
    """Return the names of the host's sharing providers of DISK_GB."""
    sharing = hardware.sharing if hardware is not None else ()
    return {provider.name for provider in sharing if "DISK_GB" in provider.inventory}
