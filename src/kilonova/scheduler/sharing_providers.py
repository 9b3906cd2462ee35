"""Providers that share inventory over aggregates, such as a disk pool, and the hosts that reach them.

Hosts that reach the same sharing providers have the same provider set. A pool may serve thousands of hosts and changes
with every server on it. So its inventory is summarized once per provider set, and added to the hosts' own columns only
when they are read.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np

from kilonova.placement.host_providers import SHARING_TRAIT
from kilonova.scheduler.arrays import Integers, Mask, Numbers, extended
from kilonova.scheduler.inventory import InventoryColumns
from kilonova.scheduler.provider_trees import InventorySummary, TrackedProvider, summarize

_NO_PROVIDERS: frozenset[int] = frozenset()


class SharingProviders:
    def __init__(self, size: int) -> None:
        self.provider_set: Integers = np.zeros(size, np.int64)
        """The number of each row's provider set; zero: the host reaches no sharing provider."""
        self.version = 0
        self._providers: dict[int, TrackedProvider] = {}
        self._aggregates: dict[int, frozenset[str]] = {}
        self._provider_sets: list[tuple[TrackedProvider, ...]] = [()]
        self._numbers: dict[frozenset[int], int] = {_NO_PROVIDERS: 0}
        self._sets_of_provider: dict[int, list[int]] = {}
        self._summaries: dict[str, list[InventorySummary]] = {}
        self._reached: dict[frozenset[str], frozenset[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._providers)

    def __contains__(self, provider_id: int) -> bool:
        return provider_id in self._providers

    def reached_by(self, row: int) -> tuple[TrackedProvider, ...]:
        return self._provider_sets[int(self.provider_set[row])]

    def put(self, provider: TrackedProvider) -> bool:
        """Add, update or remove a provider by its traits; return whether all rows must be assigned again."""
        if SHARING_TRAIT not in provider.state.traits:
            return self.drop(provider.id)
        if self._aggregates.get(provider.id) == provider.state.aggregates:
            self._summaries.clear()
            self.version += 1
            return False
        self._providers[provider.id] = provider
        self._aggregates[provider.id] = provider.state.aggregates
        self._clear_sets()
        return True

    def drop(self, provider_id: int) -> bool:
        """Remove a provider; return whether all rows must be assigned again."""
        if provider_id not in self._providers:
            return False
        del self._providers[provider_id], self._aggregates[provider_id]
        self._clear_sets()
        return True

    def update_summaries(self, provider_id: int) -> None:
        """Summarize again after the usage of a provider has changed."""
        self.version += 1
        for name, summaries in self._summaries.items():
            for number in self._sets_of_provider.get(provider_id, ()):
                summaries[number] = summarize(name, self._provider_sets[number])

    def assign(self, row: int, aggregates: frozenset[str], own: Collection[int] = ()) -> None:
        """Give a row the set of the providers that share with its aggregates, except its own providers."""
        if not self._providers:
            return
        ids = self._reach(aggregates)
        if own and ids:
            ids = ids.difference(own)
        number = self._numbers.get(ids)
        if number is None:
            number = self._numbers[ids] = len(self._provider_sets)
            self._add_set(tuple(self._providers[provider_id] for provider_id in sorted(ids)))
        if self.provider_set[row] != number:
            self.provider_set[row] = number
            self.version += 1

    def grow(self, by: int) -> None:
        self.provider_set = extended(self.provider_set, by)
        self.version += 1

    def summaries(self, name: str) -> list[InventorySummary] | None:
        """The inventory of a resource class per provider set; None if no provider shares the class."""
        if not any(name in provider.state.inventory for provider in self._providers.values()):
            return None
        summaries = self._summaries.get(name)
        if summaries is None:
            summaries = self._summaries[name] = [summarize(name, providers) for providers in self._provider_sets]
        return summaries

    def has_trait(self, trait: str) -> Mask | None:
        """The rows that reach a provider with this trait; None if no provider has it."""
        if not any(trait in provider.state.traits for provider in self._providers.values()):
            return None
        found = [any(trait in provider.state.traits for provider in providers) for providers in self._provider_sets]
        return np.array(found, np.bool_).take(self.provider_set)

    def _reach(self, aggregates: frozenset[str]) -> frozenset[int]:
        ids = self._reached.get(aggregates)
        if ids is None:
            ids = frozenset(one.id for one in self._providers.values() if one.state.aggregates & aggregates)
            self._reached[aggregates] = ids
        return ids

    def _add_set(self, providers: tuple[TrackedProvider, ...]) -> None:
        for provider in providers:
            self._sets_of_provider.setdefault(provider.id, []).append(len(self._provider_sets))
        self._provider_sets.append(providers)
        self._summaries.clear()
        self.version += 1

    def _clear_sets(self) -> None:
        self.provider_set[:] = 0
        self.version += 1
        self._provider_sets = [()]
        self._numbers = {_NO_PROVIDERS: 0}
        self._sets_of_provider.clear()
        self._summaries.clear()
        self._reached.clear()


class CombinedInventory:
    """The columns of a resource class that hosts have themselves and that is also shared with some of them."""

    def __init__(self, own: InventoryColumns, provider_set: Integers, summaries: list[InventorySummary]) -> None:
        self._own = own
        self._provider_set = provider_set
        self._summaries = summaries
        self.has_unit_rules = own.has_unit_rules

    @cached_property
    def capacity(self) -> Numbers:
        return self._own.capacity + self._column([one.capacity for one in self._summaries])

    @property
    def limit(self) -> Numbers:
        """The former name of `capacity`, for filters of other packages."""
        return self.capacity

    @cached_property
    def used(self) -> Numbers:
        return self._own.used + self._column([one.used for one in self._summaries])

    @cached_property
    def proposed(self) -> Numbers:
        return self._own.proposed + self._column([one.proposed for one in self._summaries])

    @cached_property
    def free(self) -> Numbers:
        return self._own.free + self._column([one.capacity - one.used - one.proposed for one in self._summaries])

    @cached_property
    def max_allocation(self) -> Numbers:
        return np.maximum(self._own.max_allocation, self._column([one.max_allocation for one in self._summaries]))

    @cached_property
    def max_unit(self) -> Numbers:
        return np.maximum(self._own.max_unit, self._column([one.max_unit for one in self._summaries]))

    # Units of the host's own provider do not reject a row that can also allocate from a sharing provider.

    @cached_property
    def min_unit(self) -> Integers:
        return np.where(self._is_shared, 1, self._own.min_unit)

    @cached_property
    def step_size(self) -> Integers:
        return np.where(self._is_shared, 1, self._own.step_size)

    @cached_property
    def _is_shared(self) -> Mask:
        return self._column([one.capacity for one in self._summaries]) > 0

    def _column(self, values: list[float]) -> Numbers:
        """Spread one value per provider set over the rows."""
        return np.array(values, np.float64).take(self._provider_set)
