"""Applies the flavor's `quota:*` extra specs to the domain: CPU, memory, disk, network and RNG limits."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping

from kilonova.hosts.drivers.base import DriverError
from kilonova.hosts.messages import Guest

_CPU = {"cpu_shares": "shares", "cpu_period": "period", "cpu_quota": "quota"}
_MEMORY = {"memory_limit": "hard_limit", "memory_reservation": "soft_limit"}
_DISK = ("read_bytes_sec", "read_iops_sec", "write_bytes_sec", "write_iops_sec", "total_bytes_sec", "total_iops_sec")
_NIC = ("average", "peak", "burst")


def apply_to_domain(domain: ET.Element, guest: Guest) -> None:
    specs = guest.flavor.extra_specs
    _section(domain, "cputune", {name: _quota(specs, spec) for spec, name in _CPU.items()})
    _section(domain, "memtune", {name: _quota(specs, spec) for spec, name in _MEMORY.items()}, unit="MiB")


def apply_to_disk(disk: ET.Element, guest: Guest) -> None:
    _section(disk, "iotune", {name: _quota(guest.flavor.extra_specs, f"disk_{name}") for name in _DISK})


def apply_to_nic(interface: ET.Element, guest: Guest) -> None:
    specs = guest.flavor.extra_specs
    found: dict[str, dict[str, str]] = {}
    for direction in ("inbound", "outbound"):
        values = {name: _quota(specs, f"vif_{direction}_{name}") for name in _NIC}
        if values["average"] is not None:
            found[direction] = {name: str(value) for name, value in values.items() if value is not None}
    if found:
        bandwidth = ET.SubElement(interface, "bandwidth")
        for direction, attributes in found.items():
            ET.SubElement(bandwidth, direction, attributes)


def apply_to_rng(rng: ET.Element, guest: Guest) -> None:
    specs = {key.replace("hw_rng:", "quota:rng_"): value for key, value in guest.flavor.extra_specs.items()}
    amount = _quota(specs, "rng_rate_bytes")
    if amount:
        rng.insert(0, ET.Element("rate", bytes=str(amount), period=str(_quota(specs, "rng_rate_period") or 1000)))


def _section(parent: ET.Element, name: str, values: Mapping[str, int | None], **attributes: str) -> None:
    given = {key: value for key, value in values.items() if value is not None}
    if given:
        section = ET.SubElement(parent, name)
        for key, value in given.items():
            ET.SubElement(section, key, attributes).text = str(value)


def _quota(specs: Mapping[str, str], name: str) -> int | None:
    text = specs.get(f"quota:{name}")
    if text is None:
        return None
    # quota:cpu_quota may be -1: unlimited.
    if not text.removeprefix("-").isdigit() or (text.startswith("-") and name != "cpu_quota"):
        raise DriverError(f"quota:{name} of the flavor is {text!r}, not a number")
    return int(text)
