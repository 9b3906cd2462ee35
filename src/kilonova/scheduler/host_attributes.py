"""Attributes of hosts, by the names that extra specs (`capabilities:`) and the hint `query` use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Mask, Numbers
    from kilonova.scheduler.hypervisor_columns import HypervisorKind
    from kilonova.scheduler.snapshot import Hosts

Test = Callable[[Any], bool]

_KIND_ATTRIBUTES: dict[str, Callable[[HypervisorKind], object]] = {
    "hypervisor_type": lambda kind: kind.type,
    "hypervisor_version": lambda kind: kind.version,
    "cpu_info": lambda kind: kind.cpu,
}
_NAME_ATTRIBUTES: dict[str, Callable[[Hosts], Sequence[str]]] = {
    "host": lambda hosts: hosts.names,
    "hypervisor_hostname": lambda hosts: hosts.hypervisor_hostnames,
    "host_ip": lambda hosts: hosts.hypervisors.addresses,
}
_NUMBER_ATTRIBUTES: dict[str, Callable[[Hosts], Numbers]] = {
    "free_ram_mb": lambda hosts: hosts.inventory("MEMORY_MB").free,
    "total_usable_ram_mb": lambda hosts: hosts.inventory("MEMORY_MB").capacity,
    "free_disk_mb": lambda hosts: hosts.inventory("DISK_GB").free * 1024,
    "total_usable_disk_gb": lambda hosts: hosts.inventory("DISK_GB").capacity,
    "vcpus_total": lambda hosts: hosts.inventory("VCPU").capacity,
    "vcpus_used": lambda hosts: hosts.inventory("VCPU").used,
}
NAMES = frozenset({*_KIND_ATTRIBUTES, *_NAME_ATTRIBUTES, *_NUMBER_ATTRIBUTES})


def hosts_where(hosts: Hosts, path: Sequence[str], test: Test) -> Mask | None:
    """Hosts whose attribute passes the test. A longer path leads into `cpu_info`. None for an unknown attribute."""
    name, *inner = path
    if name in _KIND_ATTRIBUTES:
        return hosts.hypervisors.where(
            lambda kind: _passes(_nested(_KIND_ATTRIBUTES[name](kind), inner), test), hosts.everywhere
        )
    if inner:
        return None
    if name in _NAME_ATTRIBUTES:
        return _by_row(hosts, [_passes(value, test) for value in _NAME_ATTRIBUTES[name](hosts)])
    if name in _NUMBER_ATTRIBUTES:
        values, positions = np.unique(_NUMBER_ATTRIBUTES[name](hosts), return_inverse=True)
        return np.array([_passes(_as_int_if_whole(value), test) for value in values.tolist()], np.bool_)[positions]
    return None


def describe(hosts: Hosts, row: int, path: Sequence[str]) -> str:
    """The attribute of one host as text."""
    name, *inner = path
    if name in _KIND_ATTRIBUTES:
        found = _nested(_KIND_ATTRIBUTES[name](hosts.hypervisors.kind_at(row)), inner)
        return "no such attribute" if found is None else str(found)
    if name in _NAME_ATTRIBUTES:
        return _NAME_ATTRIBUTES[name](hosts)[row]
    if name in _NUMBER_ATTRIBUTES:
        return str(_as_int_if_whole(float(_NUMBER_ATTRIBUTES[name](hosts)[row])))
    return "no such attribute"


def _nested(value: object, path: Sequence[str]) -> object:
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _passes(value: object, test: Test) -> bool:
    return value is not None and test(value)


def _as_int_if_whole(value: float) -> float:
    return int(value) if value == int(value) else value


def _by_row(hosts: Hosts, passes: Sequence[bool]) -> Mask:
    mask = np.zeros(hosts.size, np.bool_)
    mask[: len(passes)] = passes
    return mask
