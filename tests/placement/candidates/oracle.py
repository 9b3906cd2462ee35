"""The rules of allocation candidates, said as plainly as possible and tried on every combination there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from kilonova.placement.candidates.model import Arrangement, Ask, Provider

SHARES = "MISC_SHARES_VIA_AGGREGATE"


def all_arrangements(
    ask: Ask, tree: Sequence[Provider], sharing: Sequence[Provider], others: Sequence[Provider] = ()
) -> Iterator[Arrangement]:
    root = next(provider for provider in tree if provider.uuid == provider.root)
    everyone = [*tree, *(provider for provider in sharing if _shares_with(provider, tree))]
    known = {provider.uuid: provider for provider in (*tree, *sharing, *others)}
    # One part for each class of the unnumbered group, one for each other group.
    parts = [("", name) for name in ask.groups[""].resources] if "" in ask.groups else []
    parts += [(suffix, "") for suffix in ask.groups if suffix]
    for combination in product(everyone, repeat=len(parts)):
        chosen = dict(zip(parts, combination, strict=True))
        if _allowed(ask, root, chosen, known):
            yield _arrangement(ask, root, chosen)


def _shares_with(provider: Provider, tree: Sequence[Provider]) -> bool:
    return SHARES in provider.traits and any(provider.aggregates & other.aggregates for other in tree)


def _allowed(ask: Ask, root: Provider, chosen: dict[Any, Provider], known: dict[str, Provider]) -> bool:
    if not ask.root_required <= root.traits or ask.root_forbidden & root.traits:
        return False
    for (suffix, name), provider in chosen.items():
        group = ask.groups[suffix]
        asked = {name: group.resources[name]} if name else group.resources
        if not all(cls in provider.stocks and provider.stocks[cls].gives(n) for cls, n in asked.items()):
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
        _traits(ask, root, chosen, known)
        and _room(ask, chosen)
        and _isolated(ask, chosen)
        and all(_below_one([chosen[suffix, ""] for suffix in some], known) for some in ask.same_subtree)
    )


def _traits(ask: Ask, root: Provider, chosen: dict[Any, Provider], known: dict[str, Provider]) -> bool:
    for suffix, group in ask.groups.items():
        serving = [provider for (other, _), provider in chosen.items() if other == suffix]
        traits = set().union(*(provider.traits for provider in serving))
        if not all(some & traits for some in group.required):
            return False
    return True


def _room(ask: Ask, chosen: dict[Any, Provider]) -> bool:
    for uuid, taken in _allocations(ask, chosen).items():
        provider = next(provider for provider in chosen.values() if provider.uuid == uuid)
        for name, amount in taken.items():
            stock = provider.stocks[name]
            if stock.used + amount > stock.capacity or amount > stock.max_unit:
                return False
    return True


def _isolated(ask: Ask, chosen: dict[Any, Provider]) -> bool:
    numbered = [provider.uuid for (suffix, _), provider in chosen.items() if suffix]
    return not ask.isolate or len(set(numbered)) == len(numbered)


def _below_one(providers: list[Provider], known: dict[str, Provider]) -> bool:
    return any(all(top in _line(provider, known) for provider in providers) for top in providers)


def _line(provider: Provider, known: dict[str, Provider]) -> list[Provider]:
    """A provider and its ancestors."""
    line = [provider]
    while (parent := line[-1].parent) is not None:
        line.append(known[parent])
    return line


def _allocations(ask: Ask, chosen: dict[Any, Provider]) -> dict[str, dict[str, int]]:
    taken: dict[str, dict[str, int]] = {}
    for (suffix, only), provider in chosen.items():
        for name, amount in ask.groups[suffix].resources.items():
            if only in ("", name):
                mine = taken.setdefault(provider.uuid, {})
                mine[name] = mine.get(name, 0) + amount
    return taken


def _arrangement(ask: Ask, root: Provider, chosen: dict[Any, Provider]) -> Arrangement:
    mappings: dict[str, list[str]] = {}
    for (suffix, _), provider in chosen.items():
        served = mappings.setdefault(suffix, [])
        if provider.uuid not in served:
            served.append(provider.uuid)
    return Arrangement(root.uuid, _allocations(ask, chosen), mappings)
