"""What a simulated host is, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kilonova.hosts.drivers.sim.shapes import Shape, arch_traits, inventory_of
from kilonova.hosts.drivers.sim.store import Size
from kilonova.hosts.messages import HostFacts, Inventory, SharingProvider

RESERVED_MEMORY_MB = 512
CPU_ALLOCATION_RATIO = 4.0
HYPERVISOR_TYPE = "kilonova-sim"
HYPERVISOR_VERSION = 1_000_000  # 1.0.0, as libvirt would count it

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
]
X86_TRAITS = ["HW_CPU_X86_SSE42", "HW_CPU_X86_VMX"]

_PLAIN = Shape(name="plain")
_CPUS = {"VCPU", "PCPU"}


class Body(msgspec.Struct, frozen=True):
    """What a simulated host is made of: so much, or of a shape, and with a share in what others have too."""

    size: Size = Size()
    shape: Shape | None = None
    sharing: Sequence[SharingProvider] = ()


def facts(host: str, body: Body, booted_at: float | None = None) -> HostFacts:
    """What the host tells of itself."""
    shape = body.shape or _PLAIN
    return HostFacts(
        host=host,
        hypervisor_hostname=host,
        hypervisor_type=shape.hypervisor_type or HYPERVISOR_TYPE,
        hypervisor_version=shape.hypervisor_version or HYPERVISOR_VERSION,
        host_ip="127.0.0.1",
        cpu_info=_cpu_info(body.size, shape),
        inventory=inventory_of(shape.inventory) if body.shape else _inventory(body.size),
        traits=_traits(shape),
        nested=shape.providers(),
        sharing=list(body.sharing),
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
    named = [*TRAITS, *arch_traits(shape.arch), *(X86_TRAITS if shape.arch == ARCH else ()), *shape.traits]
    return [trait for trait in dict.fromkeys(named) if trait not in shape.without_traits]


def _cpu_info(size: Size, shape: Shape) -> dict[str, Any]:
    cells = sum(not _CPUS.isdisjoint(part.inventory) for part in shape.providers()) or 1
    cores = max(1, size.vcpus // cells)
    known = {"model": "Nehalem", "vendor": "Intel", "features": ["sse4.2", "vmx"]} if shape.arch == ARCH else {}
    topology = {"cells": cells, "sockets": 1, "cores": cores, "threads": 1}
    return {"arch": shape.arch, **known, "topology": topology, **shape.cpu_info}
