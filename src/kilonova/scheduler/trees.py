"""Hosts that are more than one provider: a root with NUMA cells, devices or whatever else below it.

Their columns say what the tree has; what it can really give at once is worked out from the providers themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from kilonova.placement.candidates.model import Provider, Stock
from kilonova.placement.providers import Amounts


class Marks(NamedTuple):
    """How new what is known of a provider is; see the columns of the same names in the database."""

    change: int
    facts: int
    generation: int


class MemberFacts(msgspec.Struct, frozen=True):
    """A provider as the database has it. The root of a host's tree is the host's own provider."""

    provider_id: int
    uuid: str
    parent: str | None
    root: str
    inventory: Mapping[str, Amounts]
    used: Mapping[str, int]
    traits: frozenset[str]
    aggregates: frozenset[str]
    marks: Marks


class Member:
    """A provider of a tree, or one that shares. What is proposed but not yet claimed counts as used."""

    def __init__(self, facts: MemberFacts) -> None:
        self.facts = facts
        self.used: Mapping[str, int] = facts.used
        self.marks = facts.marks
        self.foreseen: dict[str, int] = {}
        self.tree: Tree | None = None
        self.look = 0
        self._provider: Provider | None = None

    @property
    def id(self) -> int:
        return self.facts.provider_id

    @property
    def provider(self) -> Provider:
        """As the search for arrangements wants it."""
        if self._provider is None:
            facts = self.facts
            stocks = {name: self._stock(name, amounts) for name, amounts in facts.inventory.items()}
            self._provider = Provider(facts.uuid, facts.parent, facts.root, stocks, facts.traits, facts.aggregates)
        return self._provider

    def put(self, facts: MemberFacts) -> int:
        """Take over what was read, unless something newer is known; how many claims it shows, most likely."""
        if facts.marks.change < self.marks.change:
            return 0
        self.facts = facts
        self._provider = None
        return self.use(facts.used, facts.marks)

    def use(self, used: Mapping[str, int], marks: Marks) -> int:
        if marks.change < self.marks.change:
            return 0
        claims = marks.generation - self.marks.generation
        self.used, self.marks = used, marks
        self._provider = None
        return claims

    def foresee(self, amounts: Mapping[str, int], sign: int) -> None:
        for name, amount in amounts.items():
            self.foreseen[name] = self.foreseen.get(name, 0) + sign * amount
        self._provider = None

    def _stock(self, name: str, amounts: Amounts) -> Stock:
        return Stock(
            (amounts.total - amounts.reserved) * amounts.allocation_ratio,
            self.used.get(name, 0) + self.foreseen.get(name, 0),
            amounts.min_unit,
            amounts.max_unit,
            amounts.step_size,
        )


class Summary(NamedTuple):
    """What several providers have of one class together, and `room`, the most that any one of them can give."""

    limit: float
    used: float
    foreseen: float
    min_unit: int
    max_unit: float
    step_size: int
    room: float


NOTHING = Summary(0.0, 0.0, 0.0, 1, 0.0, 1, 0.0)


def summary(name: str, members: Iterable[Member]) -> Summary:
    """Of the units those that let pass whatever any of the providers would give."""
    having = [(member, stock) for member in members if (stock := member.provider.stocks.get(name)) is not None]
    if not having:
        return NOTHING
    stocks = [stock for _, stock in having]
    return Summary(
        limit=sum(stock.capacity for stock in stocks),
        used=sum(member.used.get(name, 0) for member, _ in having),
        foreseen=sum(member.foreseen.get(name, 0) for member, _ in having),
        min_unit=min(stock.min_unit for stock in stocks),
        max_unit=max(stock.max_unit for stock in stocks),
        step_size=math.gcd(*(stock.step_size for stock in stocks)),
        room=max(min(stock.capacity - stock.used, stock.max_unit) for stock in stocks),
    )


class Tree:
    """A host's own provider and all below it."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.members: dict[int, Member] = {}

    @property
    def classes(self) -> set[str]:
        return {name for member in self.members.values() for name in member.facts.inventory}

    @property
    def traits(self) -> frozenset[str]:
        """Those that any provider has."""
        return frozenset().union(*(member.facts.traits for member in self.members.values()))

    @property
    def common_traits(self) -> frozenset[str]:
        """Those that every provider has."""
        sets = [member.facts.traits for member in self.members.values()]
        return sets[0].intersection(*sets[1:])

    @property
    def aggregates(self) -> frozenset[str]:
        return frozenset().union(*(member.facts.aggregates for member in self.members.values()))

    def summary(self, name: str) -> Summary:
        return summary(name, self.members.values())

    def providers(self) -> list[Provider]:
        return [member.provider for member in self.members.values()]


class Forest:
    """All providers that have to be known one by one: those of trees, and those that share. Named by their ids."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.trees: dict[int, Tree] = {}
        self._ids: dict[str, int] = {}

    def id_of(self, uuid: str) -> int | None:
        return self._ids.get(uuid)

    def put(self, facts: MemberFacts, look: int) -> tuple[Member, int]:
        """The provider with what was read of it, and how many claims that shows. A higher look is a later one."""
        member = self.members.get(facts.provider_id)
        if member is None:
            member = self.members[facts.provider_id] = Member(facts)
            self._ids[facts.uuid] = facts.provider_id
            claims = 0
        else:
            claims = member.put(facts)
        member.look = max(member.look, look)
        return member, claims

    def join(self, tree: Tree, member: Member) -> Tree | None:
        """Put a provider into a tree; the tree that it leaves thereby."""
        before = member.tree
        if before is not None and before is not tree:
            del before.members[member.id]
        tree.members[member.id] = member
        member.tree = tree
        return before if before is not tree else None

    def remove(self, provider_id: int) -> Tree | None:
        """Forget a provider; the tree that it was in."""
        member = self.members.pop(provider_id, None)
        if member is None:
            return None
        del self._ids[member.facts.uuid]
        if member.tree is not None:
            del member.tree.members[provider_id]
        return member.tree
