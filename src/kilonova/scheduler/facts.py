"""What operators and users may compare hosts by, under the names that extra specs and hints have for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kilonova.scheduler.machines import Machine
    from kilonova.scheduler.snapshot import Hosts, Mask
    from kilonova.scheduler.stock import Numbers

Test = Callable[[Any], bool]

_MACHINES: dict[str, Callable[[Machine], object]] = {
    "hypervisor_type": lambda machine: machine.type,
    "hypervisor_version": lambda machine: machine.version,
    "cpu_info": lambda machine: machine.processors,
}
_NAMES: dict[str, Callable[[Hosts], Sequence[str]]] = {
    "host": lambda hosts: hosts.names,
    "hypervisor_hostname": lambda hosts: hosts.hypervisor_hostnames,
    "host_ip": lambda hosts: hosts.machines.addresses,
}
_NUMBERS: dict[str, Callable[[Hosts], Numbers]] = {
    "free_ram_mb": lambda hosts: hosts.stock("MEMORY_MB").free,
    "total_usable_ram_mb": lambda hosts: hosts.stock("MEMORY_MB").limit,
    "free_disk_mb": lambda hosts: hosts.stock("DISK_GB").free * 1024,
    "total_usable_disk_gb": lambda hosts: hosts.stock("DISK_GB").limit,
    "vcpus_total": lambda hosts: hosts.stock("VCPU").limit,
    "vcpus_used": lambda hosts: hosts.stock("VCPU").used,
}
NAMES = frozenset({*_MACHINES, *_NAMES, *_NUMBERS})


def where(hosts: Hosts, path: Sequence[str], test: Test) -> Mask | None:
    """Hosts whose fact passes the test. A longer path goes into `cpu_info`. None if there is no such fact."""
    name, *inner = path
    if name in _MACHINES:
        return hosts.machines.where(
            lambda machine: _passes(_within(_MACHINES[name](machine), inner), test), hosts.everywhere
        )
    if inner:
        return None
    if name in _NAMES:
        return _by_row(hosts, [_passes(value, test) for value in _NAMES[name](hosts)])
    if name in _NUMBERS:
        values, places = np.unique(_NUMBERS[name](hosts), return_inverse=True)
        return np.array([_passes(_whole(value), test) for value in values.tolist()], np.bool_)[places]
    return None


def at(hosts: Hosts, row: int, path: Sequence[str]) -> str:
    """One host's fact in words."""
    name, *inner = path
    if name in _MACHINES:
        found = _within(_MACHINES[name](hosts.machines.of(row)), inner)
        return "nothing of that name" if found is None else str(found)
    if name in _NAMES:
        return _NAMES[name](hosts)[row]
    if name in _NUMBERS:
        return str(_whole(float(_NUMBERS[name](hosts)[row])))
    return "nothing of that name"


def _within(value: object, path: Sequence[str]) -> object:
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _passes(value: object, test: Test) -> bool:
    return value is not None and test(value)


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value


def _by_row(hosts: Hosts, passes: Sequence[bool]) -> Mask:
    mask = np.zeros(hosts.size, np.bool_)
    mask[: len(passes)] = passes
    return mask
