"""A brute-force reference for allocation candidates: tries every combination of providers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from kilonova.placement.candidates.model import AllocationRequest, Provider, ResourceRequest

SHARES = "MISC_SHARES_VIA_AGGREGATE"


def all_allocation_requests(
    request: ResourceRequest, tree: Sequence[Provider], sharing: Sequence[Provider], others: Sequence[Provider] = ()
) -> Iterator[AllocationRequest]:
    root = next(provider for provider in tree if provider.uuid == provider.root)
    everyone = [*tree, *(provider for provider in sharing if _shares_with(provider, tree))]
    known = {provider.uuid: provider for provider in (*tree, *sharing, *others)}
    # One requirement for each class of the unnumbered group, one for each other group.
    parts = [("", name) for name in request.groups[""].resources] if "" in request.groups else []
    parts += [(suffix, "") for suffix in request.groups if suffix]
    for combination in product(everyone, repeat=len(parts)):
        chosen = dict(zip(parts, combination, strict=True))
        if _allowed(request, root, chosen, known):
            yield _allocation_request(request, root, chosen)


def _shares_with(provider: Provider, tree: Sequence[Provider]) -> bool:
    return SHARES in provider.traits and any(provider.aggregates & other.aggregates for other in tree)


def _allowed(request: ResourceRequest, root: Provider, chosen: dict[Any, Provider], known: dict[str, Provider]) -> bool:
    if not request.root_required <= root.traits or request.root_forbidden & root.traits:
        return False
    for (suffix, name), provider in chosen.items():
        group = request.groups[suffix]
        requested = {name: group.resources[name]} if name else group.resources
        if not all(
            cls in provider.inventories and provider.inventories[cls].can_allocate(n) for cls, n in requested.items()
        ):
            return False
        if provider.traits & group.forbidden:
            return False
        if group.in_tree is not None and provider.root != known[group.in_tree].root:
            return False
        aggregates = provider.aggregates
        if suffix == "":
            aggregates = aggregates | known[provider.root].aggregates
        if aggregates & group.forbidden_aggregates or not all(some & aggregates for some in group.member_of):
            return False
    return (
        _traits_match(request, root, chosen, known)
        and _has_capacity(request, chosen)
        and _isolated(request, chosen)
        and all(_in_one_subtree([chosen[suffix, ""] for suffix in some], known) for some in request.same_subtree)
    )


def _traits_match(
    request: ResourceRequest, root: Provider, chosen: dict[Any, Provider], known: dict[str, Provider]
) -> bool:
    for suffix, group in request.groups.items():
        serving = [provider for (other, _), provider in chosen.items() if other == suffix]
        traits = set().union(*(provider.traits for provider in serving))
        if not all(some & traits for some in group.required):
            return False
    return True


def _has_capacity(request: ResourceRequest, chosen: dict[Any, Provider]) -> bool:
    for uuid, taken in _allocations(request, chosen).items():
        provider = next(provider for provider in chosen.values() if provider.uuid == uuid)
        for name, amount in taken.items():
            inventory = provider.inventories[name]
            if inventory.used + amount > inventory.capacity or amount > inventory.max_unit:
                return False
    return True


def _isolated(request: ResourceRequest, chosen: dict[Any, Provider]) -> bool:
    numbered = [provider.uuid for (suffix, _), provider in chosen.items() if suffix]
    return not request.isolate or len(set(numbered)) == len(numbered)


def _in_one_subtree(providers: list[Provider], known: dict[str, Provider]) -> bool:
    return any(all(top in _with_ancestors(provider, known) for provider in providers) for top in providers)


def _with_ancestors(provider: Provider, known: dict[str, Provider]) -> list[Provider]:
    """A provider and its ancestors."""
    line = [provider]
    while (parent := line[-1].parent) is not None:
        line.append(known[parent])
    return line


def _allocations(request: ResourceRequest, chosen: dict[Any, Provider]) -> dict[str, dict[str, int]]:
    taken: dict[str, dict[str, int]] = {}
    for (suffix, only), provider in chosen.items():
        for name, amount in request.groups[suffix].resources.items():
            if only in ("", name):
                mine = taken.setdefault(provider.uuid, {})
                mine[name] = mine.get(name, 0) + amount
    return taken


def _allocation_request(request: ResourceRequest, root: Provider, chosen: dict[Any, Provider]) -> AllocationRequest:
    mappings: dict[str, list[str]] = {}
    for (suffix, _), provider in chosen.items():
        served = mappings.setdefault(suffix, [])
        if provider.uuid not in served:
            served.append(provider.uuid)
    return AllocationRequest(root.uuid, _allocations(request, chosen), mappings)
