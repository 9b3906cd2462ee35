"""A host must match the image's architecture, hypervisor type, hypervisor version and VM mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kilonova.scheduler.filters import Reason, Reasons, all_of
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.hypervisor_columns import HypervisorKind
    from kilonova.scheduler.snapshot import Hosts, Mask

_ARCHITECTURES = {
    "amd64": "x86_64",
    "x64": "x86_64",
    "i386": "i686",
    "i486": "i686",
    "i586": "i686",
    "arm64": "aarch64",
}
# Hypervisor type: image types that it can run.
_TYPES = {"qemu": ("qemu", "kvm"), "kvm": ("kvm", "qemu")}
_MODES = {
    "qemu": ("hvm",),
    "kvm": ("hvm",),
    "vmware": ("hvm",),
    "xen": ("hvm", "xen"),
    "lxc": ("exe",),
    "uml": ("uml",),
}
# A simulated hypervisor matches every type.
_ANY = "kilonova-sim"
_VERSION = re.compile(r"\s*(==|!=|>=|<=|>|<)?\s*(\d+(?:\.\d+)*)\s*")


class _Requirement(NamedTuple):
    """One image property: the hosts that meet it, and the texts of its reason."""

    text: str
    need: str
    has: Callable[[HypervisorKind], str]
    met: Callable[[HypervisorKind], bool]


def _requirements(request: Request) -> list[_Requirement]:
    properties = request.image_properties
    found = []
    for make, *names in _MAKERS:
        value = next((properties[name] for name in names if properties.get(name)), None)
        if value is not None:
            found.append(make(value))
    return found


def _architecture(value: str) -> _Requirement:
    wanted = _canonical(value)
    return _Requirement(
        "not of architecture {need}",
        wanted,
        lambda kind: kind.architecture,
        lambda kind: not kind.architecture or _canonical(kind.architecture) == wanted,
    )


def _type(value: str) -> _Requirement:
    return _Requirement(
        "not of hypervisor type {need}",
        value,
        lambda kind: kind.type,
        lambda kind: kind.type in ("", _ANY) or value.lower() in _TYPES.get(_type_name(kind), (_type_name(kind),)),
    )


def _version(value: str) -> _Requirement:
    return _Requirement(
        "not of hypervisor version {need}",
        value,
        lambda kind: kind.release,
        lambda kind: not kind.version or _meets_version_rule(kind.release, value),
    )


def _mode(value: str) -> _Requirement:
    return _Requirement(
        "without vm mode {need}",
        value,
        lambda kind: ", ".join(_MODES.get(_type_name(kind), ())),
        lambda kind: value.lower() in _MODES.get(_type_name(kind), (value.lower(),)),
    )


# How to make a requirement from a property; the property's current name and its older name.
_MAKERS: tuple[tuple[Callable[[str], _Requirement], str, str], ...] = (
    (_architecture, "hw_architecture", "architecture"),
    (_type, "img_hv_type", "hypervisor_type"),
    (_version, "img_hv_requested_version", "hypervisor_version_requires"),
    (_mode, "hw_vm_mode", "vm_mode"),
)


def _type_name(kind: HypervisorKind) -> str:
    return kind.type.lower()


def _canonical(architecture: str) -> str:
    name = architecture.lower()
    return _ARCHITECTURES.get(name, name)


def _meets_version_rule(version: str, rule: str) -> bool:
    """`>=6.0, <7`: every part must be met. A malformed part is not."""
    return all(_meets_part(version, part) for part in rule.split(","))


def _meets_part(version: str, part: str) -> bool:
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


def _reason(requirement: _Requirement) -> Reason:
    return Reason(
        requirement.text,
        need=lambda _: requirement.need,
        have=lambda _, host: requirement.has(host.hypervisor_kind),
        applies=lambda _, hosts: ~hosts.hypervisors.where(requirement.met, hosts.everywhere),
    )


reason = Reasons(lambda request: [_reason(requirement) for requirement in _requirements(request)])

on_rebuild = True


def passes(request: Request, hosts: Hosts) -> Mask:
    return all_of(
        hosts, (hosts.hypervisors.where(requirement.met, hosts.everywhere) for requirement in _requirements(request))
    )
