"""Host aggregates: their member hosts and their metadata."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kilonova.scheduler.arrays import Mask, Numbers

T = TypeVar("T")

_NO_AGGREGATES: frozenset[int] = frozenset()
_LARGE_FRACTION = 64  # an aggregate with more than 1/64 of the rows has a mask of its own
_CACHE_SIZE = 256


class StoredMetadata(NamedTuple):
    """Metadata of an aggregate, and the number of the read that it is from."""

    read_number: int
    metadata: Mapping[str, str]


class Aggregates:
    """Members are rows. Derived values are cached until an aggregate changes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._by_row: list[frozenset[int]] = []
        self._members: dict[int, set[int]] = {}
        self._metadata: dict[int, StoredMetadata] = {}
        self._masks: dict[int, Mask] = {}
        self._cache: dict[Hashable, Any] = {}

    # For filters and weighers

    def metadata_of_row(self, row: int) -> list[Mapping[str, str]]:
        """The metadata of every aggregate of a host."""
        return [self.metadata(number) for number in sorted(self._by_row[row])]

    def metadata(self, aggregate: int) -> Mapping[str, str]:
        found = self._metadata.get(aggregate)
        return {} if found is None else found.metadata

    def having(self, key: str) -> dict[int, str]:
        """Aggregates with this key in their metadata, and its value."""
        return self._by_key().get(key, {})

    def metadata_keys(self) -> Iterable[str]:
        """All metadata keys of all aggregates."""
        return self._by_key()

    def union(self, aggregates: Iterable[int]) -> Mask:
        """The rows of all hosts in any of these aggregates."""
        mask = np.zeros(self._size, np.bool_)
        for number in aggregates:
            rows = self._members.get(number, ())
            if len(rows) * _LARGE_FRACTION > self._size:
                mask |= self._mask(number)
            else:
                mask[list(rows)] = True
        return mask

    def numbers(self, key: str) -> Numbers | None:
        """The number that each host's aggregates have under a key: the lowest one; NaN where there is none.

        None if no aggregate has the key. Values that are not numbers are ignored.
        """
        if key not in self._by_key():
            return None

        def make() -> Numbers:
            numbers = np.full(self._size, np.nan)
            for aggregate, value in self.having(key).items():
                with suppress(ValueError):
                    rows = list(self._members[aggregate])
                    numbers[rows] = np.fmin(numbers[rows], float(value))
            return numbers

        return self.keep(("numbers", key), make)

    def numbers_or_default(self, key: str, default: float) -> float | Numbers:
        numbers = self.numbers(key)
        return default if numbers is None else np.where(np.isnan(numbers), default, numbers)

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, cached until an aggregate changes."""
        found: T | None = self._cache.get(key)
        if found is None:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.clear()
            found = self._cache[key] = make()
        return found

    def _by_key(self) -> dict[str, dict[int, str]]:
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

    # For the snapshot loader

    def set_metadata(self, read_number: int, metadata: Mapping[int, Mapping[str, str]]) -> None:
        """Replace metadata unless it comes from an earlier read than the known one."""
        for number, entries in metadata.items():
            known = self._metadata.get(number)
            if known is None or read_number >= known.read_number:
                self._metadata[number] = StoredMetadata(read_number, entries)
                if known is None or known.metadata != entries:
                    self._cache.clear()

    def assign(self, row: int, aggregates: frozenset[int]) -> None:
        """Replace the aggregates of a row's host."""
        while len(self._by_row) <= row:
            self._by_row.append(_NO_AGGREGATES)
        before = self._by_row[row]
        if before == aggregates:
            return
        self._by_row[row] = aggregates
        self._cache.clear()
        for number in aggregates - before:
            self._members.setdefault(number, set()).add(row)
            if number in self._masks:
                self._masks[number][row] = True
        for number in before - aggregates:
            self._remove_member(number, row)

    def _remove_member(self, aggregate: int, row: int) -> None:
        members = self._members[aggregate]
        members.discard(row)
        if aggregate in self._masks:
            self._masks[aggregate][row] = False
        if not members:
            del self._members[aggregate]
            self._masks.pop(aggregate, None)
            self._metadata.pop(aggregate, None)

    def grow(self, by: int) -> None:
        self._size += by
        self._masks.clear()
        self._cache.clear()
