"""Providers that share over aggregates, as a pool of disk does, and which hosts they reach.

Hosts that reach the same ones are a circle. A pool may serve thousands of hosts and changes with every server on it:
so its room stands in one place for each circle, and meets the hosts' own columns when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kilonova.placement.facts import SHARES
from kilonova.scheduler.stock import Integers, Numbers, Stock, longer
from kilonova.scheduler.trees import Member, Summary, summary

Mask = npt.NDArray[np.bool_]

_NOBODY: frozenset[int] = frozenset()


class Sharing:
    def __init__(self, size: int) -> None:
        self.circle: Integers = np.zeros(size, np.int64)
        """The number of each row's circle; zero: nobody shares with it."""
        self.version = 0
        self._members: dict[int, Member] = {}
        self._aggregates: dict[int, frozenset[str]] = {}
        self._circles: list[tuple[Member, ...]] = [()]
        self._numbers: dict[frozenset[int], int] = {_NOBODY: 0}
        self._circles_of: dict[int, list[int]] = {}
        self._offers: dict[str, list[Summary]] = {}
        self._reached: dict[frozenset[str], frozenset[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._members)

    def __contains__(self, provider_id: int) -> bool:
        return provider_id in self._members

    def of(self, row: int) -> tuple[Member, ...]:
        return self._circles[int(self.circle[row])]

    def put(self, member: Member) -> bool:
        """A provider may share, or with others than before. Whether all rows have to be assigned anew."""
        if SHARES not in member.facts.traits:
            return self.drop(member.id)
        if self._aggregates.get(member.id) == member.facts.aggregates:
            self._offers.clear()
            self.version += 1
            return False
        self._members[member.id] = member
        self._aggregates[member.id] = member.facts.aggregates
        self._forget_circles()
        return True

    def drop(self, provider_id: int) -> bool:
        if provider_id not in self._members:
            return False
        del self._members[provider_id], self._aggregates[provider_id]
        self._forget_circles()
        return True

    def touch(self, provider_id: int) -> None:
        """The room of a provider has changed."""
        self.version += 1
        for name, offers in self._offers.items():
            for number in self._circles_of.get(provider_id, ()):
                offers[number] = summary(name, self._circles[number])

    def assign(self, row: int, aggregates: frozenset[str], own: Collection[int] = ()) -> None:
        """Put a row into the circle of those who share with its aggregates, except its own providers."""
        if not self._members:
            return
        ids = self._reach(aggregates)
        if own and ids:
            ids = ids.difference(own)
        number = self._numbers.get(ids)
        if number is None:
            number = self._numbers[ids] = len(self._circles)
            self._add_circle(tuple(self._members[provider_id] for provider_id in sorted(ids)))
        if self.circle[row] != number:
            self.circle[row] = number
            self.version += 1

    def grow(self, by: int) -> None:
        self.circle = longer(self.circle, by)
        self.version += 1

    def offer(self, name: str) -> list[Summary] | None:
        """What each circle has of a class; None if nobody shares any."""
        if not any(name in member.facts.inventory for member in self._members.values()):
            return None
        offers = self._offers.get(name)
        if offers is None:
            offers = self._offers[name] = [summary(name, members) for members in self._circles]
        return offers

    def bears(self, trait: str) -> Mask | None:
        """The rows that reach a provider with this trait; None if no provider has it."""
        if not any(trait in member.facts.traits for member in self._members.values()):
            return None
        found = [any(trait in member.facts.traits for member in members) for members in self._circles]
        return np.array(found, np.bool_).take(self.circle)

    def _reach(self, aggregates: frozenset[str]) -> frozenset[int]:
        ids = self._reached.get(aggregates)
        if ids is None:
            ids = frozenset(one.id for one in self._members.values() if one.facts.aggregates & aggregates)
            self._reached[aggregates] = ids
        return ids

    def _add_circle(self, members: tuple[Member, ...]) -> None:
        for member in members:
            self._circles_of.setdefault(member.id, []).append(len(self._circles))
        self._circles.append(members)
        self._offers.clear()
        self.version += 1

    def _forget_circles(self) -> None:
        self.circle[:] = 0
        self.version += 1
        self._circles = [()]
        self._numbers = {_NOBODY: 0}
        self._circles_of.clear()
        self._offers.clear()
        self._reached.clear()


class Pooled:
    """The columns of a class that hosts have themselves and that is shared with some of them."""

    def __init__(self, own: Stock, circle: Integers, offers: list[Summary]) -> None:
        self._own = own
        self._circle = circle
        self._offers = offers
        self.odd = own.odd

    @cached_property
    def limit(self) -> Numbers:
        return self._own.limit + self._column([offer.limit for offer in self._offers])

    @cached_property
    def used(self) -> Numbers:
        return self._own.used + self._column([offer.used for offer in self._offers])

    @cached_property
    def foreseen(self) -> Numbers:
        return self._own.foreseen + self._column([offer.foreseen for offer in self._offers])

    @cached_property
    def free(self) -> Numbers:
        return self._own.free + self._column([one.limit - one.used - one.foreseen for one in self._offers])

    @cached_property
    def room(self) -> Numbers:
        return np.maximum(self._own.room, self._column([offer.room for offer in self._offers]))

    @cached_property
    def max_unit(self) -> Numbers:
        return np.maximum(self._own.max_unit, self._column([offer.max_unit for offer in self._offers]))

    # Where there are other providers to take it from, a host's own units reject nothing.

    @cached_property
    def min_unit(self) -> Integers:
        return np.where(self._offered, 1, self._own.min_unit)

    @cached_property
    def step_size(self) -> Integers:
        return np.where(self._offered, 1, self._own.step_size)

    @cached_property
    def _offered(self) -> Mask:
        return self._column([offer.limit for offer in self._offers]) > 0

    def _column(self, values: list[float]) -> Numbers:
        """A value for each circle, as a column of rows."""
        return np.array(values, np.float64).take(self._circle)
