"""What a server needs of a host, read from its flavor's sizes and extra specs and from its image's properties."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kilonova.placement.candidates.model import Group

ISOLATE, NONE = "isolate", "none"
PLAIN = frozenset({"group_policy", "same_subtree", "hide_hypervisor_id"})
"""Specs without a scope that have a meaning of their own."""

_SPEC = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{0,64}):(.*)")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})

# A wish of the guest's machine and the trait of hosts that grant it. The first spelling is a flavor's, the second
# an image's; `{}` is the value.
_TRAITS = (
    ("hw:tpm_version", "hw_tpm_version", "COMPUTE_SECURITY_TPM_{}"),
    ("hw:viommu_model", "hw_viommu_model", "COMPUTE_VIOMMU_MODEL_{}"),
)
_THREADS = "HW_CPU_HYPERTHREADING"


class _Draft:
    """The needs while they are gathered. Group "" is the unnumbered one."""

    def __init__(self, resources: dict[str, int]) -> None:
        self.resources: dict[str, dict[str, int]] = {"": resources}
        self.required: dict[str, set[str]] = {"": set()}
        self.forbidden: dict[str, set[str]] = {"": set()}

    @property
    def suffixes(self) -> list[str]:
        return sorted({*self.resources, *self.required, *self.forbidden} - {""})

    def ask(self, suffix: str, resource_class: str, amount: int) -> None:
        """Zero takes back what the flavor's size asks for."""
        group = self.resources.setdefault(suffix, {})
        if amount:
            group[resource_class] = amount
        else:
            group.pop(resource_class, None)

    def trait(self, spec: str, suffix: str, trait: str, rule: str) -> None:
        if rule not in ("required", "forbidden"):
            raise ValueError(f"{spec} must be required or forbidden, not {rule!r}")
        wanted, other = (self.required, self.forbidden) if rule == "required" else (self.forbidden, self.required)
        if trait in other.get(suffix, ()):
            raise ValueError(f"{spec} is both required and forbidden")
        wanted.setdefault(suffix, set()).add(trait)


def sizes(flavor: Mapping[str, Any], root_disk: bool = True) -> dict[str, int]:
    """What the sizes of a flavor come to; swap and the ephemeral disk are on the host's disk too."""
    swap_gb = -(-flavor["swap"] // 1024)
    amounts = {
        "VCPU": flavor["vcpus"],
        "MEMORY_MB": flavor["ram"],
        "DISK_GB": flavor["disk"] * root_disk + flavor["ephemeral"] + swap_gb,
    }
    return {name: amount for name, amount in amounts.items() if amount}


def needs(flavor: Mapping[str, Any], image_properties: Mapping[str, str], *, root_disk: bool = True) -> dict[str, Any]:
    """The fields of a request that flavor and image decide. Raises ValueError, which names the spec, if one is wrong.

    The flavor has the keys vcpus, ram, disk, ephemeral, swap and extra_specs, as a server keeps its copy. One that
    boots from a volume has its `root_disk` elsewhere.
    """
    specs: Mapping[str, str] = flavor.get("extra_specs") or {}
    draft = _Draft(sizes(flavor, root_disk))
    if specs or image_properties:
        _machine(draft, specs, image_properties)
        for spec, value in specs.items():
            _take(draft, spec, value)
        for name, value in image_properties.items():
            if name.startswith("trait:"):
                draft.trait(f"the image property {name}", "", _trait(name, name[6:]), value)
    subtrees = _subtrees(draft, specs)
    groups = {suffix: _group(draft, suffix, subtrees) for suffix in draft.suffixes}
    if not draft.resources[""] and not any(group.resources for group in groups.values()):
        raise ValueError("its extra specs leave nothing to ask a host for")
    return {
        "resources": draft.resources[""],
        "required_traits": frozenset(draft.required[""]),
        "forbidden_traits": frozenset(draft.forbidden[""]),
        "groups": groups,
        "isolate": _isolate(groups, specs),
        "same_subtree": subtrees,
        "extra_specs": specs,
        "image_properties": image_properties,
    }


def _take(draft: _Draft, spec: str, value: str) -> None:
    match = _SPEC.fullmatch(spec)
    if match is None:
        return
    kind, suffix, name = match.groups()
    if kind == "trait":
        draft.trait(f"the extra spec {spec}", suffix, _trait(spec, name), value)
        return
    if not _NAME.fullmatch(name):
        raise ValueError(f"the extra spec {spec} names no resource class")
    if not re.fullmatch("[0-9]{1,9}", value):
        raise ValueError(f"the extra spec {spec} must be a whole number, not {value[:80]!r}")
    draft.ask(suffix, name, int(value))


def _trait(spec: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{spec} names no trait")
    return name


def _group(draft: _Draft, suffix: str, subtrees: tuple[frozenset[str], ...]) -> Group:
    resources = draft.resources.get(suffix, {})
    if not resources and not any(suffix in subtree for subtree in subtrees):
        raise ValueError(f"the extra specs trait{suffix}: need a resources{suffix}: or a same_subtree beside them")
    return Group(
        resources=resources,
        required=tuple(frozenset((trait,)) for trait in sorted(draft.required.get(suffix, ()))),
        forbidden=frozenset(draft.forbidden.get(suffix, ())),
    )


def _isolate(groups: Mapping[str, Group], specs: Mapping[str, str]) -> bool:
    policy = specs.get("group_policy")
    if policy not in (None, ISOLATE, NONE):
        raise ValueError(f"the extra spec group_policy must be isolate or none, not {policy!r}")
    if policy is None and len(groups) > 1:
        raise ValueError("the extra spec group_policy is needed with more than one numbered group of resources")
    return policy == ISOLATE


def _subtrees(draft: _Draft, specs: Mapping[str, str]) -> tuple[frozenset[str], ...]:
    """`same_subtree` names groups by their suffixes, with commas; several such lists are parted by semicolons."""
    text = specs.get("same_subtree")
    if text is None:
        return ()
    subtrees = tuple(frozenset(suffix.strip() for suffix in part.split(",")) for part in text.split(";"))
    for suffix in frozenset().union(*subtrees):
        if not suffix or suffix not in draft.suffixes:
            raise ValueError(f"the extra spec same_subtree names {suffix!r}, which is no group of this flavor")
    return subtrees


# Wishes for the guest's machine that decide which hosts can have it


def _machine(draft: _Draft, specs: Mapping[str, str], properties: Mapping[str, str]) -> None:
    def wish(spec: str, image_property: str) -> str:
        return specs.get(spec) or properties.get(image_property) or ""

    _processors(draft, specs, wish("hw:cpu_policy", "hw_cpu_policy"))
    match wish("hw:cpu_thread_policy", "hw_cpu_thread_policy"):
        case "require":
            draft.trait("hw:cpu_thread_policy", "", _THREADS, "required")
        case "isolate":
            draft.trait("hw:cpu_thread_policy", "", _THREADS, "forbidden")
    for spec, image_property, trait in _TRAITS:
        if value := wish(spec, image_property):
            name = re.sub("[^A-Z0-9]", "_", value.upper())
            draft.trait(spec, "", trait.format(name), "required")
    if wish("os:secure_boot", "os_secure_boot") == "required":
        draft.trait("os:secure_boot", "", "COMPUTE_SECURITY_UEFI_SECURE_BOOT", "required")
    if wish("hw:mem_encryption", "hw_mem_encryption").lower() in _TRUE:
        draft.ask("", "MEM_ENCRYPTION_CONTEXT", 1)


def _processors(draft: _Draft, specs: Mapping[str, str], policy: str) -> None:
    """Dedicated processors are a class of their own."""
    count = draft.resources[""].get("VCPU", 0)
    dedicated = 0
    if policy == "dedicated":
        dedicated = count
    elif policy == "mixed":
        dedicated = len(_cpus("hw:cpu_dedicated_mask", specs.get("hw:cpu_dedicated_mask", ""), count))
        if not 0 < dedicated < count:
            raise ValueError("the extra spec hw:cpu_dedicated_mask must leave some processors shared, but not all")
    if dedicated:
        extra = specs.get("hw:emulator_threads_policy") == ISOLATE
        draft.ask("", "VCPU", count - dedicated)
        draft.ask("", "PCPU", dedicated + extra)


def _cpus(spec: str, text: str, count: int) -> set[int]:
    """`0-3,^1`; a list that begins with an exclusion excludes from all."""
    chosen: set[int] = set(range(count)) if text.startswith("^") else set()
    for part in text.split(","):
        match = re.fullmatch(r"(\^?)(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if match is None:
            raise ValueError(f"the extra spec {spec} is no list of processors: {text[:80]!r}")
        numbers = range(int(match[2]), int(match[3] or match[2]) + 1)
        chosen = chosen.difference(numbers) if match[1] else chosen.union(numbers)
    return {number for number in chosen if number < count}
