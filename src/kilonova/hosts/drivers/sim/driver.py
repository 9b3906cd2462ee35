"""The driver of one simulated host: each step takes its latency, fails if a rule says so, then changes `sim.db`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kilonova.hosts.drivers.base import DriverError, MissingGuest, NoAnswer
from kilonova.hosts.drivers.sim.rules import Rule, Rules, Step
from kilonova.hosts.drivers.sim.store import SimStore, Size
from kilonova.hosts.messages import Guest, GuestState, HostFacts, Inventory

RESERVED_MEMORY_MB = 512
CPU_ALLOCATION_RATIO = 4.0
HYPERVISOR_TYPE = "kilonova-sim"
HYPERVISOR_VERSION = 1_000_000  # 1.0.0, as libvirt would count it

TRAITS = [
    "COMPUTE_NODE",
    "COMPUTE_ARCH_X86_64",
    "COMPUTE_FIRMWARE_BIOS",
    "COMPUTE_FIRMWARE_UEFI",
    "COMPUTE_IMAGE_TYPE_ISO",
    "COMPUTE_IMAGE_TYPE_QCOW2",
    "COMPUTE_IMAGE_TYPE_RAW",
    "COMPUTE_NET_VIF_MODEL_E1000",
    "COMPUTE_NET_VIF_MODEL_VIRTIO",
    "COMPUTE_STORAGE_BUS_SCSI",
    "COMPUTE_STORAGE_BUS_VIRTIO",
    "HW_ARCH_X86_64",
    "HW_CPU_X86_SSE42",
    "HW_CPU_X86_VMX",
]

_HANG_LOOKS_EVERY = 0.1


class SimDriver:
    def __init__(self, host: str, size: Size, store: SimStore, rules: Rules, latency: Mapping[str, float]) -> None:
        self._host = host
        self._size = size
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
        return HostFacts(
            host=self._host,
            hypervisor_hostname=self._host,
            hypervisor_type=HYPERVISOR_TYPE,
            hypervisor_version=HYPERVISOR_VERSION,
            host_ip="127.0.0.1",
            cpu_info=_cpu_info(self._size),
            inventory=_inventory(self._size),
            traits=TRAITS,
        )

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
        rule = self._rules.take_failure(self._host, step)
        if rule is not None:
            await self._fail(rule, step)

    async def _fail(self, rule: Rule, step: Step) -> None:
        """A hang lasts until its rule is cleared, and then the step goes on."""
        message = rule.message or f"simulated failure of {step}"
        match rule.mode:
            case "unreachable":
                raise NoAnswer(message)
            case "hang":
                while self._rules.standing(rule):
                    await asyncio.sleep(_HANG_LOOKS_EVERY)
            case _:
                raise DriverError(message)


def _inventory(size: Size) -> dict[str, Inventory]:
    return {
        "VCPU": Inventory(total=size.vcpus, max_unit=size.vcpus, allocation_ratio=CPU_ALLOCATION_RATIO),
        "MEMORY_MB": Inventory(
            total=size.memory_mb, max_unit=size.memory_mb, reserved=min(RESERVED_MEMORY_MB, size.memory_mb)
        ),
        "DISK_GB": Inventory(total=size.disk_gb, max_unit=size.disk_gb),
    }


def _cpu_info(size: Size) -> dict[str, Any]:
    return {
        "arch": "x86_64",
        "model": "Nehalem",
        "vendor": "Intel",
        "features": ["sse4.2", "vmx"],
        "topology": {"cells": 1, "sockets": 1, "cores": size.vcpus, "threads": 1},
    }
