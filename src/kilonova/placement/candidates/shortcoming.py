"""Why a tree of providers cannot give what is asked for, in a few words: what an operator has to look at first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kilonova.placement.candidates.model import UNNUMBERED, Ask, Group, Provider
from kilonova.placement.candidates.search import (
    Slot,
    Surroundings,
    arrangements,
    coverable,
    gives,
    has_traits,
    is_member,
    lacking,
    separable,
    slots,
)


def shortcoming(ask: Ask, tree: Sequence[Provider], sharing: Sequence[Provider] = ()) -> str:
    """The first thing that is missing; empty if there is an arrangement after all."""
    around = Surroundings(tree, sharing)
    found = slots(ask, around)
    return (
        _root(ask, around.root)
        or next((said for suffix, group in ask.groups.items() if (said := _group(suffix, group, around))), "")
        or _uncovered(ask, found)
        or _together(ask, found)
        or _combined(ask, tree, sharing)
    )


def _root(ask: Ask, root: Provider) -> str:
    if missing := ask.root_required - root.traits:
        return f"the root provider lacks {_names(missing)}"
    if present := ask.root_forbidden & root.traits:
        return f"the root provider has the forbidden {_names(present)}"
    return ""


def _group(suffix: str, group: Group, around: Surroundings) -> str:
    """What no provider has that could serve the group alone; of the unnumbered one, each class by itself."""
    for_whom = f" for group {suffix}" if suffix else ""
    for wanted in [group.resources] if suffix else [{name: n} for name, n in group.resources.items()]:
        if said := _one(wanted, group, around, spread=not suffix):
            return said + for_whom
    if not suffix and not group.resources:
        return _root_alone(group, around)
    return ""


def _root_alone(group: Group, around: Surroundings) -> str:
    if not has_traits(around.root, group):
        return f"the root provider lacks {_traits(group)}"
    if around.root not in around.of(group, spread=True):
        return "the root provider has forbidden traits, or is in other aggregates or another tree"
    return ""


def _one(wanted: Mapping[str, int], group: Group, around: Surroundings, *, spread: bool) -> str:
    for name, amount in wanted.items():
        if not any(gives(provider, {name: amount}) for provider in around.reach):
            return f"no provider of the tree has {amount} {name}{_most(name, amount, around.reach)}"
    having = [provider for provider in around.reach if gives(provider, wanted)]
    what = " and ".join(f"{amount} {name}" for name, amount in wanted.items())
    if not having:
        return f"no single provider has {what}"
    return _criteria(group, having, around, f"no provider with {what}" if wanted else "no provider", spread=spread)


def _most(name: str, amount: int, reach: Iterable[Provider]) -> str:
    """How much there is, if it is too little; enough may still be the wrong step or more than one unit may have."""
    rooms = [min(stock.capacity - stock.used, stock.max_unit) for p in reach if (stock := p.stocks.get(name))]
    if not rooms:
        return ""
    room = max(0, int(max(rooms)))
    return f" (at most {room})" if room < amount else " in these units"


def _criteria(group: Group, having: list[Provider], around: Surroundings, nobody: str, *, spread: bool) -> str:
    """Which of the group's conditions leaves none of the providers."""
    if group.in_tree is not None:
        having = [provider for provider in having if provider.root == around.home(group.in_tree)]
        if not having:
            return f"{nobody} is in the tree of {group.in_tree}"
    if not spread:
        having = [provider for provider in having if has_traits(provider, group)]
        if not having:
            return f"{nobody} has {_traits(group)}"
    having = [provider for provider in having if not group.forbidden & provider.traits]
    if not having:
        return f"{nobody} is without {_names(group.forbidden)}"
    if not any(is_member(around.aggregates(provider, spread), group) for provider in having):
        return f"{nobody} is in the right aggregates"
    return ""


def _uncovered(ask: Ask, found: Sequence[Slot]) -> str:
    if coverable(ask, found):
        return ""
    group = ask.groups[UNNUMBERED]
    serving = [provider for slot in found if not slot.suffix for provider in slot.options]
    missing = [any_of for any_of in group.required if not any(any_of & provider.traits for provider in serving)]
    return f"no provider that could be used has {_traits(msgspec.structs.replace(group, required=tuple(missing)))}"


def _together(ask: Ask, found: Sequence[Slot]) -> str:
    for name in lacking(found):
        needed = sum(slot.resources.get(name, 0) for slot in found)
        return f"all groups together need {needed} {name}, more than there is"
    if ask.isolate and not separable(found):
        return _apart(slot.suffix for slot in found if slot.suffix)
    return ""


def _combined(ask: Ask, tree: Sequence[Provider], sharing: Sequence[Provider]) -> str:
    """No condition fails by itself: see which of those between groups has to go for an arrangement to be there."""
    if _possible(ask, tree, sharing):
        return ""
    for together in ask.same_subtree:
        rest = tuple(other for other in ask.same_subtree if other is not together)
        if _possible(msgspec.structs.replace(ask, same_subtree=rest), tree, sharing):
            return f"groups {_list(sorted(together))} find no common subtree"
    if ask.isolate and _possible(msgspec.structs.replace(ask, isolate=False), tree, sharing):
        return _apart(suffix for suffix in ask.groups if suffix)
    if ask.same_subtree and _possible(msgspec.structs.replace(ask, same_subtree=()), tree, sharing):
        return "the groups find no subtrees that suit them all"
    group = ask.groups.get(UNNUMBERED)
    if group is not None and group.required:
        eased = {**ask.groups, UNNUMBERED: msgspec.structs.replace(group, required=())}
        if _possible(msgspec.structs.replace(ask, groups=eased), tree, sharing):
            return f"the providers with room do not have {_traits(group)} between them"
    return "each group finds a provider, but not all of them at once"


def _possible(ask: Ask, tree: Sequence[Provider], sharing: Sequence[Provider]) -> bool:
    return next(arrangements(ask, tree, sharing), None) is not None


def _apart(suffixes: Iterable[str]) -> str:
    names = sorted(suffixes)
    number = "two" if len(names) == 2 else str(len(names))
    return f"groups {_list(names)} find no {number} different providers"


def _traits(group: Group) -> str:
    """Required traits in words; those of which one is enough stand together."""
    return _list([" or ".join(sorted(any_of)) for any_of in group.required])


def _names(names: Iterable[str]) -> str:
    return _list(sorted(names))


def _list(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)
