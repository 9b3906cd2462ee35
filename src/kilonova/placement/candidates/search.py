"""Searches one provider tree, with the sharing providers that reach it, for allocations that serve a request.

The search is a generator without side effects: the API takes as many results as its caller wants, the scheduler the
first results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kilonova.placement.candidates.model import UNNUMBERED, AllocationRequest, Provider, RequestGroup, ResourceRequest
from kilonova.placement.host_providers import SHARING_TRAIT

# The search gives up a tree after this many steps without a result. Some requests have exponentially many combinations
# that nearly fit, and skipping a host is better than a search that does not end.
MAX_FRUITLESS_STEPS = 20_000
# With more groups than this, only the search itself decides whether each gets a provider of its own.
_MAX_MATCHED_GROUPS = 100


class Requirement(NamedTuple):
    """Resources that one provider must serve: those of a numbered group, or one class of the unnumbered group."""

    suffix: str
    resources: Mapping[str, int]
    options: list[Provider]


class ReachableProviders:
    """A tree and the sharing providers that reach it.

    `sharing` may have more: providers that do not reach this tree, and the roots of nested sharing providers, whose
    aggregates count for all their descendants.
    """

    def __init__(self, tree: Sequence[Provider], sharing: Sequence[Provider]) -> None:
        self.root_uuid = tree[0].root
        self.by_uuid = {provider.uuid: provider for provider in (*sharing, *tree)}
        self.root = self.by_uuid[self.root_uuid]
        self._ancestors: dict[str, frozenset[str]] = {}
        own = frozenset().union(*(provider.aggregates for provider in tree)) if sharing else frozenset()
        self.all = list(tree)
        self.all += (
            provider
            for provider in sharing
            if provider.root != self.root_uuid and SHARING_TRAIT in provider.traits and provider.aggregates & own
        )

    def eligible(self, group: RequestGroup, *, split: bool) -> list[Provider]:
        """The providers that may serve the group, regardless of their inventories.

        If resources may be `split`, a root's aggregates count for its whole tree, and no single provider needs all
        required traits.
        """
        return [provider for provider in self.all if self._may_serve(provider, group, split)]

    def _may_serve(self, provider: Provider, group: RequestGroup, split: bool) -> bool:
        if group.forbidden & provider.traits:
            return False
        if not split and not has_traits(provider, group):
            return False
        if group.in_tree is not None and provider.root != self.root_of(group.in_tree):
            return False
        if not group.member_of and not group.forbidden_aggregates:
            return True
        return is_member(self.aggregates(provider, split), group)

    def aggregates(self, provider: Provider, split: bool) -> frozenset[str]:
        root = self.by_uuid.get(provider.root)
        return provider.aggregates | root.aggregates if split and root is not None else provider.aggregates

    def root_of(self, uuid: str) -> str:
        """The root's uuid of a provider. An unknown provider is taken as the root of another tree."""
        known = self.by_uuid.get(uuid)
        return known.root if known is not None else uuid

    def ancestors(self, uuid: str) -> frozenset[str]:
        """The uuids of the provider and its ancestors."""
        found = self._ancestors.get(uuid)
        if found is None:
            chain, step = [uuid], self.by_uuid.get(uuid)
            while step is not None and step.parent is not None:
                chain.append(step.parent)
                step = self.by_uuid.get(step.parent)
            found = self._ancestors[uuid] = frozenset(chain)
        return found


def allocation_requests(
    request: ResourceRequest, tree: Sequence[Provider], sharing: Sequence[Provider] = (), *, nested: bool = True
) -> Iterator[AllocationRequest]:
    """Iterate over all distinct allocation requests, in an order that follows `tree` and `sharing`.

    Sharing providers alone may serve a request, so that several trees yield the same result. Traits and aggregates of
    an unnumbered group without resources apply to the root. Without `nested`, only one provider of the tree is used.
    """
    if len(tree) == 1 and not sharing and len(request.groups) == 1:
        return _single_provider(request, tree[0])
    return _Search(request, ReachableProviders(tree, sharing), nested).run()


def has_traits(provider: Provider, group: RequestGroup) -> bool:
    return all(any_of & provider.traits for any_of in group.required)


def is_member(aggregates: frozenset[str], group: RequestGroup) -> bool:
    return not group.forbidden_aggregates & aggregates and all(any_of & aggregates for any_of in group.member_of)


def can_allocate(provider: Provider, resources: Mapping[str, int]) -> bool:
    inventories = provider.inventories
    for name, amount in resources.items():
        inventory = inventories.get(name)
        if inventory is None or not inventory.can_allocate(amount):
            return False
    return True


def root_traits_match(request: ResourceRequest, root: Provider) -> bool:
    return request.root_required <= root.traits and not request.root_forbidden & root.traits


def _single_provider(request: ResourceRequest, provider: Provider) -> Iterator[AllocationRequest]:
    """Fast path for one provider and one group, with the same result as the search."""
    [(suffix, group)] = request.groups.items()
    if (
        root_traits_match(request, provider)
        and can_allocate(provider, group.resources)
        and not group.forbidden & provider.traits
        and has_traits(provider, group)
        and is_member(provider.aggregates, group)
        and group.in_tree in (None, provider.uuid)
    ):
        allocations = {provider.uuid: dict(group.resources)} if group.resources else {}
        mappings = {suffix: [provider.uuid]} if group.resources or suffix else {}
        yield AllocationRequest(provider.root, allocations, mappings)


class _Search:
    """Backtracking search: chooses a provider for one requirement after the other."""

    def __init__(self, request: ResourceRequest, reachable: ReachableProviders, nested: bool) -> None:
        self.request = request
        self.reachable = reachable
        self.nested = nested
        self.chosen: dict[tuple[str, str], Provider] = {}
        """By requirement: the suffix, and the class if the group is the unnumbered one."""
        self.load: dict[tuple[str, str], int] = {}
        self.tries = 0
        self.requirements = list_requirements(request, reachable)
        # Requirements with few options come first, so that dead ends show early.
        self.requirements.sort(key=lambda requirement: len(requirement.options))
        numbered = [requirement for requirement in self.requirements if requirement.suffix]
        self.options = {one.suffix: frozenset(provider.uuid for provider in one.options) for one in numbered}
        self.isolated: set[str] = set()
        """The providers of numbered groups, if each needs a provider of its own."""
        unnumbered = [depth for depth, requirement in enumerate(self.requirements) if not requirement.suffix]
        self.last_unnumbered = unnumbered[-1] if unnumbered else -1

    def run(self) -> Iterator[AllocationRequest]:
        request, reachable = self.request, self.reachable
        if root_traits_match(request, reachable.root) and is_feasible(request, reachable, self.requirements):
            yield from self._results()

    def _results(self) -> Iterator[AllocationRequest]:
        """Iterative, because a request may have more groups than the interpreter's recursion limit."""
        iterators: list[Iterator[Provider]] = []
        while True:
            if len(iterators) == len(self.requirements):
                self.tries = 0
                yield self._result()
            else:
                iterators.append(iter(self.requirements[len(iterators)].options))
            while iterators and not self._advance(len(iterators) - 1, iterators[-1]):
                iterators.pop()
            if not iterators:
                return

    def _advance(self, depth: int, options: Iterator[Provider]) -> bool:
        """Choose the next suitable provider; False if there is none, or the search gives up."""
        requirement = self.requirements[depth]
        self._unassign(requirement)
        for provider in options:
            self.tries += 1
            if self.tries > MAX_FRUITLESS_STEPS:
                return False
            if self._fits(requirement, provider):
                self.chosen[_key(requirement)] = provider
                self._count_load(requirement, provider, 1)
                if self._may_succeed(requirement, depth):
                    return True
                self._unassign(requirement)
        return False

    def _unassign(self, requirement: Requirement) -> None:
        provider = self.chosen.pop(_key(requirement), None)
        if provider is not None:
            self._count_load(requirement, provider, -1)

    def _fits(self, requirement: Requirement, provider: Provider) -> bool:
        """Whether the provider can serve this in addition to the requirements already assigned to it."""
        for name, amount in requirement.resources.items():
            already = self.load.get((provider.uuid, name), 0)
            if already:
                inventory = provider.inventories[name]
                if already + amount > inventory.max_unit or inventory.used + already + amount > inventory.capacity:
                    return False
        return not (requirement.suffix and provider.uuid in self.isolated)

    def _count_load(self, requirement: Requirement, provider: Provider, sign: int) -> None:
        if requirement.suffix and self.request.isolate:
            (self.isolated.add if sign > 0 else self.isolated.discard)(provider.uuid)
        for name, amount in requirement.resources.items():
            key = (provider.uuid, name)
            self.load[key] = self.load.get(key, 0) + sign * amount

    def _may_succeed(self, requirement: Requirement, depth: int) -> bool:
        if depth == self.last_unnumbered and not self._traits_covered():
            return False
        if not self.nested and not self._uses_one_of_tree():
            return False
        subtrees = (suffixes for suffixes in self.request.same_subtree if requirement.suffix in suffixes)
        return all(self._subtree_possible(suffixes) for suffixes in subtrees)

    def _traits_covered(self) -> bool:
        """Whether the providers of the unnumbered group together have its required traits."""
        used = [provider for key, provider in self.chosen.items() if not key[0]]
        required = self.request.groups[UNNUMBERED].required
        return all(any(any_of & provider.traits for provider in used) for any_of in required)

    def _uses_one_of_tree(self) -> bool:
        root = self.reachable.root_uuid
        return len({provider.uuid for provider in self.chosen.values() if provider.root == root}) <= 1

    def _subtree_possible(self, suffixes: frozenset[str]) -> bool:
        """Whether one of the groups' providers is, or can still become, an ancestor of all others."""
        chosen = {self.chosen[suffix, ""].uuid for suffix in suffixes if (suffix, "") in self.chosen}
        self.tries += len(suffixes)
        ancestors = frozenset.intersection(*map(self.reachable.ancestors, chosen))
        if not ancestors.isdisjoint(chosen):
            return True
        open_ = (suffix for suffix in suffixes if (suffix, "") not in self.chosen)
        return any(not ancestors.isdisjoint(self.options[suffix]) for suffix in open_)

    def _result(self) -> AllocationRequest:
        allocations: dict[str, dict[str, int]] = {}
        mappings: dict[str, list[str]] = {}
        for suffix, group in self.request.groups.items():
            for name, amount in group.resources.items():
                uuid = self.chosen[suffix, "" if suffix else name].uuid
                taken = allocations.setdefault(uuid, {})
                taken[name] = taken.get(name, 0) + amount
                served = mappings.setdefault(suffix, [])
                if uuid not in served:
                    served.append(uuid)
            if suffix and not group.resources:
                mappings[suffix] = [self.chosen[suffix, ""].uuid]
        return AllocationRequest(self.reachable.root_uuid, allocations, mappings)


def list_requirements(request: ResourceRequest, reachable: ReachableProviders) -> list[Requirement]:
    found = []
    for suffix, group in request.groups.items():
        eligible = reachable.eligible(group, split=not suffix)
        if suffix:
            options = [provider for provider in eligible if can_allocate(provider, group.resources)]
            found.append(Requirement(suffix, group.resources, options))
            continue
        for name, amount in group.resources.items():
            resources = {name: amount}
            found.append(
                Requirement(
                    UNNUMBERED, resources, [provider for provider in eligible if can_allocate(provider, resources)]
                )
            )
    return found


def is_feasible(request: ResourceRequest, reachable: ReachableProviders, requirements: Sequence[Requirement]) -> bool:
    """Cheap necessary conditions for a result."""
    return (
        all(requirement.options for requirement in requirements)
        and root_meets_group(request, reachable)
        and traits_coverable(request, requirements)
        and not short_classes(requirements)
        and (not request.isolate or can_isolate(requirements))
    )


def root_meets_group(request: ResourceRequest, reachable: ReachableProviders) -> bool:
    """Whether the root meets an unnumbered group without resources."""
    group = request.groups.get(UNNUMBERED)
    if group is None or group.resources:
        return True
    return reachable.root in reachable.eligible(group, split=True) and has_traits(reachable.root, group)


def traits_coverable(request: ResourceRequest, requirements: Sequence[Requirement]) -> bool:
    """Whether each required trait of the unnumbered group is on some provider that may serve it."""
    group = request.groups.get(UNNUMBERED)
    if group is None or not group.resources or not group.required:
        return True
    providers = [provider for one in requirements if not one.suffix for provider in one.options]
    return all(any(any_of & provider.traits for provider in providers) for any_of in group.required)


def short_classes(requirements: Sequence[Requirement]) -> list[str]:
    """The classes of which all providers together have too little for all groups."""
    short = []
    for name in sorted({name for requirement in requirements for name in requirement.resources}):
        with_class = [one for one in requirements if name in one.resources]
        inventories = {provider.uuid: provider.inventories[name] for one in with_class for provider in one.options}
        free = sum(min(inventory.capacity - inventory.used, inventory.max_unit) for inventory in inventories.values())
        if sum(one.resources[name] for one in with_class) > free:
            short.append(name)
    return short


def can_isolate(requirements: Sequence[Requirement]) -> bool:
    """Whether every numbered group can have a provider of its own (bipartite matching), ignoring other conditions."""
    numbered = [requirement for requirement in requirements if requirement.suffix]
    if len(numbered) > len({provider.uuid for requirement in numbered for provider in requirement.options}):
        return False
    if len(numbered) > _MAX_MATCHED_GROUPS:
        return True
    holder: dict[str, int] = {}

    def assign(index: int, seen: set[str]) -> bool:
        for provider in numbered[index].options:
            if provider.uuid in seen:
                continue
            seen.add(provider.uuid)
            if provider.uuid not in holder or assign(holder[provider.uuid], seen):
                holder[provider.uuid] = index
                return True
        return False

    return all(assign(index, set()) for index in range(len(numbered)))


def _key(requirement: Requirement) -> tuple[str, str]:
    return (requirement.suffix, "") if requirement.suffix else (UNNUMBERED, next(iter(requirement.resources)))
