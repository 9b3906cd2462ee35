"""In which ways one tree of providers, with those that share with it, can give what is asked for.

Pure and lazy: the API takes as many arrangements as its caller wants, the scheduler the first that it can claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kilonova.placement.candidates.model import UNNUMBERED, Arrangement, Ask, Group, Provider
from kilonova.placement.facts import SHARES

# How many steps the search goes after its last arrangement before it gives up a tree. Some asks have exponentially many
# combinations that nearly fit, and an answer that never comes is worse than a host passed over.
PATIENCE = 20_000
# Beyond so many groups only the search itself tells whether each finds a provider of its own.
_MANY = 100


class Slot(NamedTuple):
    """What one provider has to give at once: a numbered group, or one class of the unnumbered one."""

    suffix: str
    resources: Mapping[str, int]
    options: list[Provider]


class Surroundings:
    """A tree and the providers that really share with it.

    `sharing` may hold more: providers that do not reach this tree, and the roots of nested sharing providers, whose
    aggregates count for the membership of all below them.
    """

    def __init__(self, tree: Sequence[Provider], sharing: Sequence[Provider]) -> None:
        self.root_uuid = tree[0].root
        self.by_uuid = {provider.uuid: provider for provider in (*sharing, *tree)}
        self.root = self.by_uuid[self.root_uuid]
        self._above: dict[str, frozenset[str]] = {}
        own = frozenset().union(*(provider.aggregates for provider in tree)) if sharing else frozenset()
        self.reach = list(tree)
        self.reach += (
            provider
            for provider in sharing
            if provider.root != self.root_uuid and SHARES in provider.traits and provider.aggregates & own
        )

    def of(self, group: Group, *, spread: bool) -> list[Provider]:
        """The providers that may serve the group, whatever they have of its resources.

        If its resources may be `spread`, a root's aggregates are those of its whole tree, and no single provider needs
        all the required traits.
        """
        return [provider for provider in self.reach if self._may_serve(provider, group, spread)]

    def _may_serve(self, provider: Provider, group: Group, spread: bool) -> bool:
        if group.forbidden & provider.traits:
            return False
        if not spread and not has_traits(provider, group):
            return False
        if group.in_tree is not None and provider.root != self.home(group.in_tree):
            return False
        if not group.member_of and not group.forbidden_aggregates:
            return True
        return is_member(self.aggregates(provider, spread), group)

    def aggregates(self, provider: Provider, spread: bool) -> frozenset[str]:
        root = self.by_uuid.get(provider.root)
        return provider.aggregates | root.aggregates if spread and root is not None else provider.aggregates

    def home(self, uuid: str) -> str:
        """The root of a provider. One that is not here has another, or is a root itself."""
        known = self.by_uuid.get(uuid)
        return known.root if known is not None else uuid

    def above(self, uuid: str) -> frozenset[str]:
        """The provider itself, and those above it."""
        found = self._above.get(uuid)
        if found is None:
            chain, step = [uuid], self.by_uuid.get(uuid)
            while step is not None and step.parent is not None:
                chain.append(step.parent)
                step = self.by_uuid.get(step.parent)
            found = self._above[uuid] = frozenset(chain)
        return found


def arrangements(
    ask: Ask, tree: Sequence[Provider], sharing: Sequence[Provider] = (), *, nested: bool = True
) -> Iterator[Arrangement]:
    """Every arrangement, each once, in an order that follows those of `tree` and `sharing`.

    An arrangement may use sharing providers alone, so that several trees have it in common. An unnumbered group without
    resources asks its traits and aggregates of the root. Without `nested` only one provider of the tree is used.
    """
    if len(tree) == 1 and not sharing and len(ask.groups) == 1:
        return _plain(ask, tree[0])
    return _Search(ask, Surroundings(tree, sharing), nested).run()


def has_traits(provider: Provider, group: Group) -> bool:
    return all(any_of & provider.traits for any_of in group.required)


def is_member(aggregates: frozenset[str], group: Group) -> bool:
    return not group.forbidden_aggregates & aggregates and all(any_of & aggregates for any_of in group.member_of)


def gives(provider: Provider, resources: Mapping[str, int]) -> bool:
    stocks = provider.stocks
    for name, amount in resources.items():
        stock = stocks.get(name)
        if stock is None or not stock.gives(amount):
            return False
    return True


def root_suits(ask: Ask, root: Provider) -> bool:
    return ask.root_required <= root.traits and not ask.root_forbidden & root.traits


def _plain(ask: Ask, provider: Provider) -> Iterator[Arrangement]:
    """One provider and one group: the same as the search finds, in a few microseconds."""
    [(suffix, group)] = ask.groups.items()
    if (
        root_suits(ask, provider)
        and gives(provider, group.resources)
        and not group.forbidden & provider.traits
        and has_traits(provider, group)
        and is_member(provider.aggregates, group)
        and group.in_tree in (None, provider.uuid)
    ):
        allocations = {provider.uuid: dict(group.resources)} if group.resources else {}
        mappings = {suffix: [provider.uuid]} if group.resources or suffix else {}
        yield Arrangement(provider.root, allocations, mappings)


class _Search:
    """Fills one slot after the other, going back where nothing is left to try."""

    def __init__(self, ask: Ask, around: Surroundings, nested: bool) -> None:
        self.ask = ask
        self.around = around
        self.nested = nested
        self.chosen: dict[tuple[str, str], Provider] = {}
        """By slot: the suffix, and the class where the group is the unnumbered one."""
        self.load: dict[tuple[str, str], int] = {}
        self.tries = 0
        self.slots = slots(ask, around)
        # The fewer ways a slot can be filled, the earlier a dead end shows.
        self.slots.sort(key=lambda slot: len(slot.options))
        self.options = {slot.suffix: frozenset(p.uuid for p in slot.options) for slot in self.slots if slot.suffix}
        self.apart: set[str] = set()
        """The providers of numbered groups, where each has to have its own."""
        unnumbered = [depth for depth, slot in enumerate(self.slots) if not slot.suffix]
        self.covered_at = unnumbered[-1] if unnumbered else -1

    def run(self) -> Iterator[Arrangement]:
        if root_suits(self.ask, self.around.root) and feasible(self.ask, self.around, self.slots):
            yield from self._fill()

    def _fill(self) -> Iterator[Arrangement]:
        """Without recursion: an ask may have more groups than the interpreter has frames."""
        trail: list[Iterator[Provider]] = []
        while True:
            if len(trail) == len(self.slots):
                self.tries = 0
                yield self._arrangement()
            else:
                trail.append(iter(self.slots[len(trail)].options))
            while trail and not self._advance(len(trail) - 1, trail[-1]):
                trail.pop()
            if not trail:
                return

    def _advance(self, depth: int, options: Iterator[Provider]) -> bool:
        """Fill the slot with the next provider that will do; False if none is left, or patience is."""
        slot = self.slots[depth]
        self._take_back(slot)
        for provider in options:
            self.tries += 1
            if self.tries > PATIENCE:
                return False
            if self._fits(slot, provider):
                self.chosen[_key(slot)] = provider
                self._add(slot, provider, 1)
                if self._promising(slot, depth):
                    return True
                self._take_back(slot)
        return False

    def _take_back(self, slot: Slot) -> None:
        provider = self.chosen.pop(_key(slot), None)
        if provider is not None:
            self._add(slot, provider, -1)

    def _fits(self, slot: Slot, provider: Provider) -> bool:
        """Whether the provider can give this on top of what earlier slots take from it."""
        for name, amount in slot.resources.items():
            already = self.load.get((provider.uuid, name), 0)
            if already:
                stock = provider.stocks[name]
                if already + amount > stock.max_unit or stock.used + already + amount > stock.capacity:
                    return False
        return not (slot.suffix and provider.uuid in self.apart)

    def _add(self, slot: Slot, provider: Provider, sign: int) -> None:
        if slot.suffix and self.ask.isolate:
            (self.apart.add if sign > 0 else self.apart.discard)(provider.uuid)
        for name, amount in slot.resources.items():
            place = (provider.uuid, name)
            self.load[place] = self.load.get(place, 0) + sign * amount

    def _promising(self, slot: Slot, depth: int) -> bool:
        if depth == self.covered_at and not self._covered():
            return False
        if not self.nested and not self._one_of_tree():
            return False
        return all(self._may_hold(together) for together in self.ask.same_subtree if slot.suffix in together)

    def _covered(self) -> bool:
        """Whether the providers of the unnumbered group have its required traits between them."""
        used = [provider for key, provider in self.chosen.items() if not key[0]]
        required = self.ask.groups[UNNUMBERED].required
        return all(any(any_of & provider.traits for provider in used) for any_of in required)

    def _one_of_tree(self) -> bool:
        root = self.around.root_uuid
        return len({provider.uuid for provider in self.chosen.values() if provider.root == root}) <= 1

    def _may_hold(self, together: frozenset[str]) -> bool:
        """Whether these groups are, or with what is left to choose can still be, below one of their providers."""
        placed = {self.chosen[suffix, ""].uuid for suffix in together if (suffix, "") in self.chosen}
        self.tries += len(together)
        tops = frozenset.intersection(*map(self.around.above, placed))
        if not tops.isdisjoint(placed):
            return True
        return any(not tops.isdisjoint(self.options[suffix]) for suffix in together if (suffix, "") not in self.chosen)

    def _arrangement(self) -> Arrangement:
        allocations: dict[str, dict[str, int]] = {}
        mappings: dict[str, list[str]] = {}
        for suffix, group in self.ask.groups.items():
            for name, amount in group.resources.items():
                uuid = self.chosen[suffix, "" if suffix else name].uuid
                taken = allocations.setdefault(uuid, {})
                taken[name] = taken.get(name, 0) + amount
                served = mappings.setdefault(suffix, [])
                if uuid not in served:
                    served.append(uuid)
            if suffix and not group.resources:
                mappings[suffix] = [self.chosen[suffix, ""].uuid]
        return Arrangement(self.around.root_uuid, allocations, mappings)


def slots(ask: Ask, around: Surroundings) -> list[Slot]:
    found = []
    for suffix, group in ask.groups.items():
        willing = around.of(group, spread=not suffix)
        if suffix:
            options = [provider for provider in willing if gives(provider, group.resources)]
            found.append(Slot(suffix, group.resources, options))
            continue
        for name, amount in group.resources.items():
            wanted = {name: amount}
            found.append(Slot(UNNUMBERED, wanted, [provider for provider in willing if gives(provider, wanted)]))
    return found


def feasible(ask: Ask, around: Surroundings, found: Sequence[Slot]) -> bool:
    """Whether the search is worth starting: what shows at once that there is no arrangement."""
    return (
        all(slot.options for slot in found)
        and root_serves(ask, around)
        and coverable(ask, found)
        and not lacking(found)
        and (not ask.isolate or separable(found))
    )


def root_serves(ask: Ask, around: Surroundings) -> bool:
    """An unnumbered group without resources is met by the root or not at all."""
    group = ask.groups.get(UNNUMBERED)
    if group is None or group.resources:
        return True
    return around.root in around.of(group, spread=True) and has_traits(around.root, group)


def coverable(ask: Ask, found: Sequence[Slot]) -> bool:
    """Whether each required trait of the unnumbered group is on some provider that may serve it."""
    group = ask.groups.get(UNNUMBERED)
    if group is None or not group.resources or not group.required:
        return True
    return all(
        any(any_of & provider.traits for slot in found if not slot.suffix for provider in slot.options)
        for any_of in group.required
    )


def lacking(found: Sequence[Slot]) -> list[str]:
    """The classes of which all the providers together have too little for all groups together."""
    short = []
    for name in sorted({name for slot in found for name in slot.resources}):
        asking = [slot for slot in found if name in slot.resources]
        stocks = {provider.uuid: provider.stocks[name] for slot in asking for provider in slot.options}
        room = sum(min(stock.capacity - stock.used, stock.max_unit) for stock in stocks.values())
        if sum(slot.resources[name] for slot in asking) > room:
            short.append(name)
    return short


def separable(found: Sequence[Slot]) -> bool:
    """Whether every numbered group can have a provider of its own, leaving aside all else."""
    numbered = [slot for slot in found if slot.suffix]
    if len(numbered) > len({provider.uuid for slot in numbered for provider in slot.options}):
        return False
    if len(numbered) > _MANY:
        return True
    holder: dict[str, int] = {}

    def settle(index: int, seen: set[str]) -> bool:
        for provider in numbered[index].options:
            if provider.uuid in seen:
                continue
            seen.add(provider.uuid)
            if provider.uuid not in holder or settle(holder[provider.uuid], seen):
                holder[provider.uuid] = index
                return True
        return False

    return all(settle(index, set()) for index in range(len(numbered)))


def _key(slot: Slot) -> tuple[str, str]:
    return (slot.suffix, "") if slot.suffix else (UNNUMBERED, next(iter(slot.resources)))
