"""The driver of one simulated host: each step takes its latency, fails if a rule says so, then changes `sim.db`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kilonova.hosts.drivers.base import DriverError, MissingGuest, NoAnswer
from kilonova.hosts.drivers.sim.rules import Rule, Rules, Step
from kilonova.hosts.drivers.sim.shapes import Shape, arch_traits, inventory_of
from kilonova.hosts.drivers.sim.store import SimStore, Size
from kilonova.hosts.messages import Guest, GuestState, HostFacts, Inventory, SharingProvider

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
]
X86_TRAITS = ["HW_CPU_X86_SSE42", "HW_CPU_X86_VMX"]

_PLAIN = Shape(name="plain")
_CPUS = {"VCPU", "PCPU"}
_HANG_LOOKS_EVERY = 0.1


class Body(msgspec.Struct, frozen=True):
    """What a simulated host is made of: so much, or of a shape, and with a share in what others have too."""

    size: Size = Size()
    shape: Shape | None = None
    sharing: Sequence[SharingProvider] = ()


class SimDriver:
    def __init__(self, host: str, body: Body, store: SimStore, rules: Rules, latency: Mapping[str, float]) -> None:
        self._host = host
        self._body = body
        self._store = store
        self._rules = rules
        self._latency = latency

    async def spawn(self, guest: Guest) -> GuestState:
        await self._pass("spawn")
        built = self._store.spec(self._host, guest.id)
        if built is None:
            self._store.add_guest(self._host, guest)
            return self._guest(guest.id)
        if not built.same_machine(guest):
            raise DriverError(f"guest {guest.id} is there already, built otherwise", kind="guest differs")
        return self._started(guest.id)

    async def destroy(self, guest_id: str) -> None:
        await self._pass("destroy")
        self._store.remove_guest(self._host, guest_id)

    async def power_on(self, guest_id: str) -> GuestState:
        await self._pass("power_on")
        return self._started(guest_id)

    async def power_off(self, guest_id: str) -> GuestState:
        await self._pass("power_off")
        self._store.set_power(self._host, guest_id, "shutdown")
        return self._guest(guest_id)

    async def reboot(self, guest_id: str, hard: bool) -> GuestState:
        await self._pass("reboot")
        self._store.set_power(self._host, guest_id, "running", boots=1)
        return self._guest(guest_id)

    async def guests(self) -> list[GuestState]:
        await self._pass("guests")
        return self._store.guests(self._host)

    async def describe(self) -> HostFacts:
        await self._pass("describe")
        return facts(self._host, self._body, self._store.booted_at(self._host))

    def _guest(self, guest_id: str) -> GuestState:
        guest = self._store.guest(self._host, guest_id)
        if guest is None:
            raise MissingGuest(guest_id)
        return guest

    def _started(self, guest_id: str) -> GuestState:
        guest = self._guest(guest_id)
        if guest.power == "running":
            return guest
        self._store.set_power(self._host, guest_id, "running", boots=1)
        return self._guest(guest_id)

    async def _pass(self, step: Step) -> None:
        seconds = self._rules.latency(self._host, step)
        if seconds is None:
            seconds = self._latency.get(step, 0.0)
        if seconds > 0:
            await asyncio.sleep(seconds)
        while (rule := self._rules.take_failure(self._host, step)) is not None:
            await self._fail(rule, step)

    async def _fail(self, rule: Rule, step: Step) -> None:
        """A hang lasts until its rule is cleared, and then the step goes on to the next rule that is due."""
        message = rule.message or f"simulated failure of {step}"
        match rule.mode:
            case "unreachable":
                raise NoAnswer(message)
            case "hang":
                while self._rules.standing(rule):
                    await asyncio.sleep(_HANG_LOOKS_EVERY)
            case _:
                raise DriverError(message)


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
