"""Hosts with several resource providers: a root provider with NUMA cells or devices below it.

Their columns say what the whole tree has. Whether a request can be allocated is decided from the providers themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from kilonova.placement.candidates.model import InventoryUsage, Provider
from kilonova.placement.reshape_plan import InventoryAmounts


class ProviderVersion(NamedTuple):
    """Which state of a provider was read: the columns of the same names of `resource_providers`."""

    change: int
    facts: int
    generation: int


class ProviderState(msgspec.Struct, frozen=True):
    """A provider as it was read from the database. `root` is the provider of its host."""

    provider_id: int
    uuid: str
    parent: str | None
    root: str
    inventory: Mapping[str, InventoryAmounts]
    used: Mapping[str, int]
    traits: frozenset[str]
    aggregates: frozenset[str]
    version: ProviderVersion


class TrackedProvider:
    """A provider of a tree, or a sharing provider. Proposed amounts count as used."""

    def __init__(self, state: ProviderState) -> None:
        self.state = state
        self.used: Mapping[str, int] = state.used
        self.version = state.version
        self.proposed: dict[str, int] = {}
        self.tree: ProviderTree | None = None
        self.read_number = 0
        self._provider: Provider | None = None

    @property
    def id(self) -> int:
        return self.state.provider_id

    @property
    def provider(self) -> Provider:
        """In the form that the search for allocation candidates takes."""
        if self._provider is None:
            state = self.state
            inventories = {name: self._usage(name, amounts) for name, amounts in state.inventory.items()}
            self._provider = Provider(state.uuid, state.parent, state.root, inventories, state.traits, state.aggregates)
        return self._provider

    def update(self, state: ProviderState) -> int:
        """Replace the state unless it is older; return the probable number of claims since."""
        if state.version.change < self.version.change:
            return 0
        self.state = state
        self._provider = None
        return self.set_used(state.used, state.version)

    def set_used(self, used: Mapping[str, int], version: ProviderVersion) -> int:
        if version.change < self.version.change:
            return 0
        claims = version.generation - self.version.generation
        self.used, self.version = used, version
        self._provider = None
        return claims

    def add_proposed(self, amounts: Mapping[str, int], sign: int) -> None:
        for name, amount in amounts.items():
            self.proposed[name] = self.proposed.get(name, 0) + sign * amount
        self._provider = None

    def _usage(self, name: str, amounts: InventoryAmounts) -> InventoryUsage:
        return InventoryUsage(
            (amounts.total - amounts.reserved) * amounts.allocation_ratio,
            self.used.get(name, 0) + self.proposed.get(name, 0),
            amounts.min_unit,
            amounts.max_unit,
            amounts.step_size,
        )


class InventorySummary(NamedTuple):
    """One resource class of several providers. `max_allocation` is the most that a single one can allocate."""

    capacity: float
    used: float
    proposed: float
    min_unit: int
    max_unit: float
    step_size: int
    max_allocation: float


EMPTY_SUMMARY = InventorySummary(0.0, 0.0, 0.0, 1, 0.0, 1, 0.0)


def summarize(name: str, providers: Iterable[TrackedProvider]) -> InventorySummary:
    """The units are the loosest ones: they admit every amount that any of the providers admits."""
    having = [(one, usage) for one in providers if (usage := one.provider.inventories.get(name)) is not None]
    if not having:
        return EMPTY_SUMMARY
    usages = [usage for _, usage in having]
    return InventorySummary(
        capacity=sum(usage.capacity for usage in usages),
        used=sum(one.used.get(name, 0) for one, _ in having),
        proposed=sum(one.proposed.get(name, 0) for one, _ in having),
        min_unit=min(usage.min_unit for usage in usages),
        max_unit=max(usage.max_unit for usage in usages),
        step_size=math.gcd(*(usage.step_size for usage in usages)),
        max_allocation=max(min(usage.capacity - usage.used, usage.max_unit) for usage in usages),
    )


class ProviderTree:
    """The root provider of a host and all providers below it, by id."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.members: dict[int, TrackedProvider] = {}

    @property
    def resource_classes(self) -> set[str]:
        return {name for member in self.members.values() for name in member.state.inventory}

    @property
    def traits(self) -> frozenset[str]:
        """Traits of any provider."""
        return frozenset().union(*(member.state.traits for member in self.members.values()))

    @property
    def common_traits(self) -> frozenset[str]:
        sets = [member.state.traits for member in self.members.values()]
        return sets[0].intersection(*sets[1:])

    @property
    def aggregates(self) -> frozenset[str]:
        return frozenset().union(*(member.state.aggregates for member in self.members.values()))

    def summarize(self, name: str) -> InventorySummary:
        return summarize(name, self.members.values())

    def providers(self) -> list[Provider]:
        return [member.provider for member in self.members.values()]


class TrackedProviders:
    """Every provider that the columns alone do not describe: those of trees, and sharing providers."""

    def __init__(self) -> None:
        self.by_id: dict[int, TrackedProvider] = {}
        self.trees: dict[int, ProviderTree] = {}
        self._ids: dict[str, int] = {}

    def id_of(self, uuid: str) -> int | None:
        return self._ids.get(uuid)

    def put(self, state: ProviderState, read_number: int) -> tuple[TrackedProvider, int]:
        """Add or update a provider; return it with the probable number of claims since it was last read."""
        provider = self.by_id.get(state.provider_id)
        if provider is None:
            provider = self.by_id[state.provider_id] = TrackedProvider(state)
            self._ids[state.uuid] = state.provider_id
            claims = 0
        else:
            claims = provider.update(state)
        provider.read_number = max(provider.read_number, read_number)
        return provider, claims

    def join(self, tree: ProviderTree, provider: TrackedProvider) -> ProviderTree | None:
        """Put a provider into a tree; return the tree that it leaves."""
        before = provider.tree
        if before is not None and before is not tree:
            del before.members[provider.id]
        tree.members[provider.id] = provider
        provider.tree = tree
        return before if before is not tree else None

    def remove(self, provider_id: int) -> None:
        provider = self.by_id.pop(provider_id, None)
        if provider is None:
            return
        del self._ids[provider.state.uuid]
        if provider.tree is not None:
            del provider.tree.members[provider_id]
