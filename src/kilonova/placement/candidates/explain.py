"""Explains in one phrase, for operators, why a provider tree cannot serve a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kilonova.placement.candidates.model import UNNUMBERED, Provider, RequestGroup, ResourceRequest
from kilonova.placement.candidates.search import (
    ReachableProviders,
    Requirement,
    allocation_requests,
    can_allocate,
    can_isolate,
    has_traits,
    is_member,
    list_requirements,
    short_classes,
    traits_coverable,
)


def find_unmet_requirement(request: ResourceRequest, tree: Sequence[Provider], sharing: Sequence[Provider] = ()) -> str:
    """The first unmet requirement, in words; empty if the tree can serve the request."""
    reachable = ReachableProviders(tree, sharing)
    requirements = list_requirements(request, reachable)
    return (
        _root_reason(request, reachable.root)
        or next(filter(None, (_group_reason(suffix, group, reachable) for suffix, group in request.groups.items())), "")
        or _uncovered_traits(request, requirements)
        or _total_reason(request, requirements)
        or _combination_reason(request, tree, sharing)
    )


def _root_reason(request: ResourceRequest, root: Provider) -> str:
    if missing := request.root_required - root.traits:
        return f"the root provider lacks {_sorted_in_words(missing)}"
    if present := request.root_forbidden & root.traits:
        return f"the root provider has the forbidden {_sorted_in_words(present)}"
    return ""


def _group_reason(suffix: str, group: RequestGroup, reachable: ReachableProviders) -> str:
    """Why no single provider can serve the group, or a class of the unnumbered group."""
    for_group = f" for group {suffix}" if suffix else ""
    for wanted in [group.resources] if suffix else [{name: n} for name, n in group.resources.items()]:
        if reason := _resources_reason(wanted, group, reachable, split=not suffix):
            return reason + for_group
    if not suffix and not group.resources:
        return _root_group_reason(group, reachable)
    return ""


def _root_group_reason(group: RequestGroup, reachable: ReachableProviders) -> str:
    if not has_traits(reachable.root, group):
        return f"the root provider lacks {_traits_in_words(group)}"
    if reachable.root not in reachable.eligible(group, split=True):
        return "the root provider has forbidden traits, or is in other aggregates or another tree"
    return ""


def _resources_reason(
    wanted: Mapping[str, int], group: RequestGroup, reachable: ReachableProviders, *, split: bool
) -> str:
    for name, amount in wanted.items():
        if not any(can_allocate(provider, {name: amount}) for provider in reachable.all):
            return f"no provider of the tree has {amount} {name}{_largest_free(name, amount, reachable.all)}"
    providers = [provider for provider in reachable.all if can_allocate(provider, wanted)]
    what = " and ".join(f"{amount} {name}" for name, amount in wanted.items())
    if not providers:
        return f"no single provider has {what}"
    prefix = f"no provider with {what}" if wanted else "no provider"
    return _conditions_reason(group, providers, reachable, prefix, split=split)


def _largest_free(name: str, amount: int, providers: Iterable[Provider]) -> str:
    """The largest free amount, if it is too small. Otherwise step_size or max_unit prevents the allocation."""
    inventories = [one for provider in providers if (one := provider.inventories.get(name))]
    if not inventories:
        return ""
    largest = max(0, int(max(min(one.capacity - one.used, one.max_unit) for one in inventories)))
    return f" (at most {largest})" if largest < amount else " in these units"


def _conditions_reason(
    group: RequestGroup, providers: list[Provider], reachable: ReachableProviders, prefix: str, *, split: bool
) -> str:
    """The first condition of the group that no provider meets."""
    if group.in_tree is not None:
        providers = [provider for provider in providers if provider.root == reachable.root_of(group.in_tree)]
        if not providers:
            return f"{prefix} is in the tree of {group.in_tree}"
    if not split:
        providers = [provider for provider in providers if has_traits(provider, group)]
        if not providers:
            return f"{prefix} has {_traits_in_words(group)}"
    providers = [provider for provider in providers if not group.forbidden & provider.traits]
    if not providers:
        return f"{prefix} is without {_sorted_in_words(group.forbidden)}"
    if not any(is_member(reachable.aggregates(provider, split), group) for provider in providers):
        return f"{prefix} is in the right aggregates"
    return ""


def _uncovered_traits(request: ResourceRequest, requirements: Sequence[Requirement]) -> str:
    if traits_coverable(request, requirements):
        return ""
    group = request.groups[UNNUMBERED]
    eligible = [provider for requirement in requirements if not requirement.suffix for provider in requirement.options]
    missing = [any_of for any_of in group.required if not any(any_of & provider.traits for provider in eligible)]
    uncovered = msgspec.structs.replace(group, required=tuple(missing))
    return f"no provider that could be used has {_traits_in_words(uncovered)}"


def _total_reason(request: ResourceRequest, requirements: Sequence[Requirement]) -> str:
    for name in short_classes(requirements):
        needed = sum(requirement.resources.get(name, 0) for requirement in requirements)
        return f"all groups together need {needed} {name}, more than there is"
    if request.isolate and not can_isolate(requirements):
        return _isolation_reason(requirement.suffix for requirement in requirements if requirement.suffix)
    return ""


def _combination_reason(request: ResourceRequest, tree: Sequence[Provider], sharing: Sequence[Provider]) -> str:
    """The condition between groups without which the tree could serve the request."""
    if _can_serve(request, tree, sharing):
        return ""
    for suffixes in request.same_subtree:
        rest = tuple(other for other in request.same_subtree if other is not suffixes)
        if _can_serve(msgspec.structs.replace(request, same_subtree=rest), tree, sharing):
            return f"groups {_in_words(sorted(suffixes))} find no common subtree"
    if request.isolate and _can_serve(msgspec.structs.replace(request, isolate=False), tree, sharing):
        return _isolation_reason(suffix for suffix in request.groups if suffix)
    if request.same_subtree and _can_serve(msgspec.structs.replace(request, same_subtree=()), tree, sharing):
        return "the groups find no subtrees that suit them all"
    group = request.groups.get(UNNUMBERED)
    if group is not None and group.required:
        without_traits = {**request.groups, UNNUMBERED: msgspec.structs.replace(group, required=())}
        if _can_serve(msgspec.structs.replace(request, groups=without_traits), tree, sharing):
            return f"the providers with room do not have {_traits_in_words(group)} between them"
    return "each group finds a provider, but not all of them at once"


def _can_serve(request: ResourceRequest, tree: Sequence[Provider], sharing: Sequence[Provider]) -> bool:
    return next(allocation_requests(request, tree, sharing), None) is not None


def _isolation_reason(suffixes: Iterable[str]) -> str:
    names = sorted(suffixes)
    number = "two" if len(names) == 2 else str(len(names))
    return f"groups {_in_words(names)} find no {number} different providers"


def _traits_in_words(group: RequestGroup) -> str:
    """Required traits in words: `A and B or C` requires A and one of B and C."""
    return _in_words([" or ".join(sorted(any_of)) for any_of in group.required])


def _sorted_in_words(names: Iterable[str]) -> str:
    return _in_words(sorted(names))


def _in_words(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)
