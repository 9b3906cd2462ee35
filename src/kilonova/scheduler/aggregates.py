"""Which hosts are in which aggregates, and what the aggregates' metadata says of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
T = TypeVar("T")

_NONE: frozenset[int] = frozenset()
_LARGE = 64  # an aggregate with more than one host in so many has a mask of its own
_CACHED = 256


class Described(NamedTuple):
    """What was read of an aggregate; a higher `look` is a later one."""

    look: int
    metadata: Mapping[str, str]


class Aggregates:
    """Members as rows. Whatever is worked out from them is kept until an aggregate changes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._of_row: list[frozenset[int]] = []
        self._members: dict[int, set[int]] = {}
        self._described: dict[int, Described] = {}
        self._masks: dict[int, Mask] = {}
        self._cache: dict[Hashable, Any] = {}

    # What filters and weighers read

    def of(self, row: int) -> list[Mapping[str, str]]:
        """The metadata of every aggregate of a host."""
        return [self.metadata(number) for number in sorted(self._of_row[row])]

    def metadata(self, aggregate: int) -> Mapping[str, str]:
        found = self._described.get(aggregate)
        return {} if found is None else found.metadata

    def having(self, key: str) -> dict[int, str]:
        """Aggregates with this key in their metadata, and its value."""
        return self._keys().get(key, {})

    def said(self) -> Iterable[str]:
        """Every key of which some aggregate has a value."""
        return self._keys()

    def union(self, aggregates: Iterable[int]) -> Mask:
        """The rows of every host in one of these."""
        mask = np.zeros(self._size, np.bool_)
        for number in aggregates:
            rows = self._members.get(number, ())
            if len(rows) * _LARGE > self._size:
                mask |= self._mask(number)
            else:
                mask[list(rows)] = True
        return mask

    def numbers(self, key: str) -> Numbers | None:
        """The number that each host's aggregates give under a key, the least if several do; NaN where none does.

        None if no aggregate has the key. What is no number says nothing.
        """
        if key not in self._keys():
            return None

        def make() -> Numbers:
            numbers = np.full(self._size, np.nan)
            for aggregate, value in self.having(key).items():
                with suppress(ValueError):
                    rows = list(self._members[aggregate])
                    numbers[rows] = np.fmin(numbers[rows], float(value))
            return numbers

        return self.keep(("numbers", key), make)

    def numbers_or(self, key: str, usual: float) -> float | Numbers:
        """The same, and the usual number where none gives any."""
        said = self.numbers(key)
        return usual if said is None else np.where(np.isnan(said), usual, said)

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, worked out once until an aggregate changes."""
        found: T | None = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            found = self._cache[key] = make()
        return found

    def _keys(self) -> dict[str, dict[int, str]]:
        def make() -> dict[str, dict[int, str]]:
            keys: dict[str, dict[int, str]] = {}
            for number in self._members:
                for key, value in self.metadata(number).items():
                    keys.setdefault(key, {})[number] = value
            return keys

        return self.keep("keys", make)

    def _mask(self, aggregate: int) -> Mask:
        mask = self._masks.get(aggregate)
        if mask is None:
            mask = self._masks[aggregate] = np.zeros(self._size, np.bool_)
            mask[list(self._members[aggregate])] = True
        return mask

    # What the feed writes

    def describe(self, look: int, metadata: Mapping[int, Mapping[str, str]]) -> None:
        """Replace metadata. What an earlier look found does not replace what a later one did."""
        for number, entries in metadata.items():
            known = self._described.get(number)
            if known is None or look >= known.look:
                self._described[number] = Described(look, entries)
                if known is None or known.metadata != entries:
                    self._cache.clear()

    def assign(self, row: int, aggregates: frozenset[int]) -> None:
        """Say in which aggregates a row's host is now."""
        while len(self._of_row) <= row:
            self._of_row.append(_NONE)
        before = self._of_row[row]
        if before == aggregates:
            return
        self._of_row[row] = aggregates
        self._cache.clear()
        for number in aggregates - before:
            self._members.setdefault(number, set()).add(row)
            if number in self._masks:
                self._masks[number][row] = True
        for number in before - aggregates:
            self._leave(number, row)

    def _leave(self, aggregate: int, row: int) -> None:
        members = self._members[aggregate]
        members.discard(row)
        if aggregate in self._masks:
            self._masks[aggregate][row] = False
        if not members:
            del self._members[aggregate]
            self._masks.pop(aggregate, None)
            self._described.pop(aggregate, None)

    def grow(self, by: int) -> None:
        self._size += by
        self._masks.clear()
        self._cache.clear()
