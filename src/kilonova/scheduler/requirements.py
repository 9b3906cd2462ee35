"""Resources and traits that a server requires, from its flavor, extra specs and image properties."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol, TypedDict

from kilonova.placement.candidates.model import RequestGroup

ISOLATE, NONE = "isolate", "none"
UNSCOPED_SPECS = frozenset({"group_policy", "same_subtree", "hide_hypervisor_id"})
"""Extra specs without a scope that have a fixed meaning."""

_SPEC = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{0,64}):(.*)")
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})

# Extra spec, image property, and the trait that they require; `{}` is the value.
_HARDWARE_TRAITS = (
    ("hw:tpm_version", "hw_tpm_version", "COMPUTE_SECURITY_TPM_{}"),
    ("hw:viommu_model", "hw_viommu_model", "COMPUTE_VIOMMU_MODEL_{}"),
)
_HYPERTHREADING = "HW_CPU_HYPERTHREADING"


class Flavor(Protocol):
    @property
    def vcpus(self) -> int: ...

    @property
    def ram(self) -> int: ...

    @property
    def disk(self) -> int: ...

    @property
    def ephemeral(self) -> int: ...

    @property
    def swap(self) -> int: ...

    @property
    def extra_specs(self) -> Mapping[str, str]: ...


class HostRequirements(TypedDict):
    """The fields of a scheduler request that follow from flavor and image."""

    resources: dict[str, int]
    required_traits: frozenset[str]
    forbidden_traits: frozenset[str]
    groups: Mapping[str, RequestGroup]
    isolate: bool
    same_subtree: tuple[frozenset[str], ...]
    extra_specs: Mapping[str, str]
    image_properties: Mapping[str, str]


class _Draft:
    """Resources and traits by group, while the specs are read. Group "" is the unnumbered group."""

    def __init__(self, resources: dict[str, int]) -> None:
        self.resources: dict[str, dict[str, int]] = {"": resources}
        self.required: dict[str, set[str]] = {"": set()}
        self.forbidden: dict[str, set[str]] = {"": set()}

    @property
    def suffixes(self) -> list[str]:
        return sorted({*self.resources, *self.required, *self.forbidden} - {""})

    def set_amount(self, suffix: str, resource_class: str, amount: int) -> None:
        """Zero removes the amount, also that of the flavor."""
        group = self.resources.setdefault(suffix, {})
        if amount:
            group[resource_class] = amount
        else:
            group.pop(resource_class, None)

    def add_trait(self, spec: str, suffix: str, trait: str, rule: str) -> None:
        if rule not in ("required", "forbidden"):
            raise ValueError(f"{spec} must be required or forbidden, not {rule!r}")
        wanted, other = (self.required, self.forbidden) if rule == "required" else (self.forbidden, self.required)
        if trait in other.get(suffix, ()):
            raise ValueError(f"{spec} is both required and forbidden")
        wanted.setdefault(suffix, set()).add(trait)


def flavor_resources(flavor: Flavor, root_disk: bool = True) -> dict[str, int]:
    """Resources of a flavor without extra specs. Swap and ephemeral disk count as host disk."""
    swap_gb = -(-flavor.swap // 1024)
    amounts = {
        "VCPU": flavor.vcpus,
        "MEMORY_MB": flavor.ram,
        "DISK_GB": flavor.disk * root_disk + flavor.ephemeral + swap_gb,
    }
    return {name: amount for name, amount in amounts.items() if amount}


def host_requirements(
    flavor: Flavor, image_properties: Mapping[str, str], *, root_disk: bool = True
) -> HostRequirements:
    """The requirements. Raises ValueError for an invalid spec.

    `root_disk` is False for a server that boots from a volume.
    """
    specs = flavor.extra_specs
    draft = _Draft(flavor_resources(flavor, root_disk))
    if specs or image_properties:
        _add_hardware_specs(draft, specs, image_properties)
        for spec, value in specs.items():
            _add_spec(draft, spec, value)
        for name, value in image_properties.items():
            if name.startswith("trait:"):
                draft.add_trait(f"the image property {name}", "", _checked_trait(name, name[6:]), value)
    subtrees = _subtrees(draft, specs)
    groups = {suffix: _group(draft, suffix, subtrees) for suffix in draft.suffixes}
    if not draft.resources[""] and not any(group.resources for group in groups.values()):
        raise ValueError("the flavor and its extra specs must request at least one resource")
    return {
        "resources": draft.resources[""],
        "required_traits": frozenset(draft.required[""]),
        "forbidden_traits": frozenset(draft.forbidden[""]),
        "groups": groups,
        "isolate": _is_isolated(groups, specs),
        "same_subtree": subtrees,
        "extra_specs": specs,
        "image_properties": image_properties,
    }


def _add_spec(draft: _Draft, spec: str, value: str) -> None:
    match = _SPEC.fullmatch(spec)
    if match is None:
        return
    kind, suffix, name = match.groups()
    if kind == "trait":
        draft.add_trait(f"the extra spec {spec}", suffix, _checked_trait(spec, name), value)
        return
    if not _NAME.fullmatch(name):
        raise ValueError(f"the extra spec {spec} must name a resource class")
    if not re.fullmatch("[0-9]{1,9}", value):
        raise ValueError(f"the extra spec {spec} must be a whole number, not {value[:80]!r}")
    draft.set_amount(suffix, name, int(value))


def _checked_trait(spec: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{spec} must name a trait")
    return name


def _group(draft: _Draft, suffix: str, subtrees: tuple[frozenset[str], ...]) -> RequestGroup:
    resources = draft.resources.get(suffix, {})
    if not resources and not any(suffix in subtree for subtree in subtrees):
        raise ValueError(f"the extra specs trait{suffix}: require a resources{suffix}: or a same_subtree with {suffix}")
    return RequestGroup(
        resources=resources,
        required=tuple(frozenset((trait,)) for trait in sorted(draft.required.get(suffix, ()))),
        forbidden=frozenset(draft.forbidden.get(suffix, ())),
    )


def _is_isolated(groups: Mapping[str, RequestGroup], specs: Mapping[str, str]) -> bool:
    policy = specs.get("group_policy")
    if policy not in (None, ISOLATE, NONE):
        raise ValueError(f"the extra spec group_policy must be isolate or none, not {policy!r}")
    if policy is None and len(groups) > 1:
        raise ValueError("the extra spec group_policy is required with more than one numbered group of resources")
    return policy == ISOLATE


def _subtrees(draft: _Draft, specs: Mapping[str, str]) -> tuple[frozenset[str], ...]:
    """Parse `same_subtree`: lists of group suffixes with commas, separated by semicolons."""
    text = specs.get("same_subtree")
    if text is None:
        return ()
    subtrees = tuple(frozenset(suffix.strip() for suffix in part.split(",")) for part in text.split(";"))
    for suffix in frozenset().union(*subtrees):
        if not suffix or suffix not in draft.suffixes:
            raise ValueError(f"the extra spec same_subtree names {suffix!r}, which is not a group of this flavor")
    return subtrees


# Virtual hardware that not every host supports


def _add_hardware_specs(draft: _Draft, specs: Mapping[str, str], properties: Mapping[str, str]) -> None:
    def value_of(spec: str, image_property: str) -> str:
        return specs.get(spec) or properties.get(image_property) or ""

    _set_cpu_resources(draft, specs, value_of("hw:cpu_policy", "hw_cpu_policy"))
    match value_of("hw:cpu_thread_policy", "hw_cpu_thread_policy"):
        case "require":
            draft.add_trait("hw:cpu_thread_policy", "", _HYPERTHREADING, "required")
        case "isolate":
            draft.add_trait("hw:cpu_thread_policy", "", _HYPERTHREADING, "forbidden")
    for spec, image_property, trait in _HARDWARE_TRAITS:
        if value := value_of(spec, image_property):
            name = re.sub("[^A-Z0-9]", "_", value.upper())
            draft.add_trait(spec, "", trait.format(name), "required")
    if value_of("os:secure_boot", "os_secure_boot") == "required":
        draft.add_trait("os:secure_boot", "", "COMPUTE_SECURITY_UEFI_SECURE_BOOT", "required")
    if value_of("hw:mem_encryption", "hw_mem_encryption").lower() in _TRUE:
        draft.set_amount("", "MEM_ENCRYPTION_CONTEXT", 1)


def _set_cpu_resources(draft: _Draft, specs: Mapping[str, str], policy: str) -> None:
    """Dedicated CPUs are of the resource class PCPU."""
    count = draft.resources[""].get("VCPU", 0)
    dedicated = 0
    if policy == "dedicated":
        dedicated = count
    elif policy == "mixed":
        dedicated = len(_parse_cpu_list("hw:cpu_dedicated_mask", specs.get("hw:cpu_dedicated_mask", ""), count))
        if not 0 < dedicated < count:
            raise ValueError("the extra spec hw:cpu_dedicated_mask must select some CPUs, but not all")
    if dedicated:
        extra = specs.get("hw:emulator_threads_policy") == ISOLATE
        draft.set_amount("", "VCPU", count - dedicated)
        draft.set_amount("", "PCPU", dedicated + extra)


def _parse_cpu_list(spec: str, text: str, count: int) -> set[int]:
    """`0-3,^1`; a list that begins with an exclusion starts from all CPUs."""
    chosen: set[int] = set(range(count)) if text.startswith("^") else set()
    for part in text.split(","):
        match = re.fullmatch(r"(\^?)(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if match is None:
            raise ValueError(f"the extra spec {spec} must be a list of CPUs, not {text[:80]!r}")
        numbers = range(int(match[2]), int(match[3] or match[2]) + 1)
        chosen = chosen.difference(numbers) if match[1] else chosen.union(numbers)
    return {number for number in chosen if number < count}
