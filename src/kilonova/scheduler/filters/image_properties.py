"""A host must be what an image says it is made for: architecture, hypervisor, its version, mode of virtualization."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kilonova.scheduler.filters import Reason, Reasons, all_of
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.machines import Machine
    from kilonova.scheduler.snapshot import Hosts, Mask

_ARCHITECTURES = {
    "amd64": "x86_64",
    "x64": "x86_64",
    "i386": "i686",
    "i486": "i686",
    "i586": "i686",
    "arm64": "aarch64",
}
# A hypervisor of the first name runs what is made for these.
_TYPES = {"qemu": ("qemu", "kvm"), "kvm": ("kvm", "qemu")}
_MODES = {
    "qemu": ("hvm",),
    "kvm": ("hvm",),
    "vmware": ("hvm",),
    "xen": ("hvm", "xen"),
    "lxc": ("exe",),
    "uml": ("uml",),
}
# A simulated hypervisor stands for any other.
_ANY = "kilonova-sim"
_VERSION = re.compile(r"\s*(==|!=|>=|<=|>|<)?\s*(\d+(?:\.\d+)*)\s*")


class _Wish(NamedTuple):
    """One property: what hosts it rejects, and how to say so."""

    text: str
    need: str
    has: Callable[[Machine], str]
    met: Callable[[Machine], bool]


def _wishes(request: Request) -> list[_Wish]:
    properties = request.image_properties
    found = []
    for make, *names in _MAKERS:
        value = next((properties[name] for name in names if properties.get(name)), None)
        if value is not None:
            found.append(make(value))
    return found


def _architecture(value: str) -> _Wish:
    wanted = _canonical(value)
    return _Wish(
        "not of architecture {need}",
        wanted,
        lambda machine: machine.architecture,
        lambda machine: not machine.architecture or _canonical(machine.architecture) == wanted,
    )


def _type(value: str) -> _Wish:
    return _Wish(
        "not of hypervisor type {need}",
        value,
        lambda machine: machine.type,
        lambda machine: machine.type in ("", _ANY) or value.lower() in _TYPES.get(_name(machine), (_name(machine),)),
    )


def _requires(value: str) -> _Wish:
    return _Wish(
        "not of hypervisor version {need}",
        value,
        lambda machine: machine.release,
        lambda machine: not machine.version or _is_version(machine.release, value),
    )


def _mode(value: str) -> _Wish:
    return _Wish(
        "without vm mode {need}",
        value,
        lambda machine: ", ".join(_MODES.get(_name(machine), ())),
        lambda machine: value.lower() in _MODES.get(_name(machine), (value.lower(),)),
    )


# What may be asked for, under its own name and the longer one of newer images.
_MAKERS: tuple[tuple[Callable[[str], _Wish], str, str], ...] = (
    (_architecture, "hw_architecture", "architecture"),
    (_type, "img_hv_type", "hypervisor_type"),
    (_requires, "img_hv_requested_version", "hypervisor_version_requires"),
    (_mode, "hw_vm_mode", "vm_mode"),
)


def _name(machine: Machine) -> str:
    return machine.type.lower()


def _canonical(architecture: str) -> str:
    name = architecture.lower()
    return _ARCHITECTURES.get(name, name)


def _is_version(version: str, rule: str) -> bool:
    """`>=6.0, <7`: every part must hold. A part that cannot be read does not."""
    return all(_holds(version, part) for part in rule.split(","))


def _holds(version: str, part: str) -> bool:
    match = _VERSION.fullmatch(part)
    if match is None:
        return False
    have, want = _numbers(version), _numbers(match[2])
    have, want = have + [0] * (len(want) - len(have)), want + [0] * (len(have) - len(want))
    match match[1]:
        case ">=":
            return have >= want
        case "<=":
            return have <= want
        case ">":
            return have > want
        case "<":
            return have < want
        case "!=":
            return have != want
        case _:
            return have == want


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _reason(wish: _Wish) -> Reason:
    return Reason(
        wish.text,
        need=lambda _: wish.need,
        have=lambda _, host: wish.has(host.machine),
        applies=lambda _, hosts: ~hosts.machines.where(wish.met, hosts.everywhere),
    )


reason = Reasons(lambda request: [_reason(wish) for wish in _wishes(request)])

on_rebuild = True


def passes(request: Request, hosts: Hosts) -> Mask:
    return all_of(hosts, (hosts.machines.where(wish.met, hosts.everywhere) for wish in _wishes(request)))
