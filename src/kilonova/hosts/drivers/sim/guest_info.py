"""The console log and the diagnostics of simulated guests."""

from __future__ import annotations

from typing import Any

from kilonova.hosts.drivers.sim.facts import HYPERVISOR_TYPE
from kilonova.hosts.messages import Guest, GuestState


def console_log(guest: GuestState, lines: int | None) -> bytes:
    """Some lines for each boot; the last `lines` of them."""
    written = []
    for boot in range(1, guest.boots + 1):
        written += [f"boot {boot} of {guest.id}", f"processors: {guest.vcpus}", f"memory: {guest.ram_mb} MiB", ""]
    shown = written if lines is None else written[-lines:] if lines else []
    return "".join(f"{line}\n" for line in shown).encode()


def diagnostics(guest: GuestState, spec: Guest) -> dict[str, Any]:
    return {
        "state": guest.power,
        "driver": "libvirt",
        "hypervisor": HYPERVISOR_TYPE,
        "hypervisor_os": "linux",
        "uptime": None,
        "config_drive": spec.config_drive,
        "num_cpus": guest.vcpus,
        "num_nics": 0,
        "num_disks": 0,
        "cpu_details": [],
        "nic_details": [],
        "disk_details": [],
        "memory_details": {"maximum": guest.ram_mb, "used": None},
    }
