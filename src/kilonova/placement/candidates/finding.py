"""Finds allocation candidates: trees from the database, their arrangements from the search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kilonova.placement.candidates import loading
from kilonova.placement.candidates.loading import Tree
from kilonova.placement.candidates.model import Arrangement, Ask, Provider
from kilonova.placement.candidates.search import arrangements
from kilonova.store import Reader

# More than any caller can look at; without it a few groups on a large tree would fill the memory.
MOST = 100_000
# Second and further arrangements of trees are looked for while there are fewer than this.
ENOUGH = 10_000
# After so many seconds others get their turn.
_TURN = 0.005
# After so many seconds the caller gets what was found so far.
LONGEST = 10.0


class Found(NamedTuple):
    arrangements: list[Arrangement]
    providers: dict[str, Provider]
    """All that were looked at, in trees: those of the arrangements and more."""


async def find(reader: Reader, ask: Ask, *, limit: int | None = None, nested: bool = True) -> Found:
    """At most `limit` arrangements: the first of every tree before the second of any."""
    found = Found([], {})
    known = await loading.resolved(reader, ask)
    if known is None:
        return found
    sharing = await loading.sharing_trees(reader, known)
    for tree in sharing:
        found.providers.update((provider.uuid, provider) for provider in tree)
    search = _Finding(known, sharing, min(limit or MOST, MOST), nested, found)
    async for tree in loading.trees(reader, known, sharing, limit):
        search.look_at(tree)
        await search.turn.over()
        if search.full or search.late:
            return found
    search.limit = min(search.limit, ENOUGH)
    while search.left and not search.full and not search.late:
        await search.go_round()
    return found


class Turn:
    """Lets others have theirs, every now and then."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _TURN

    async def over(self) -> None:
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + _TURN


class _Finding:
    def __init__(self, ask: Ask, sharing: Sequence[Tree], limit: int, nested: bool, found: Found) -> None:
        self.ask = ask
        self.sharing = [provider for tree in sharing for provider in tree]
        self.shared = {provider.uuid for provider in self.sharing}
        self.limit = limit
        self.nested = nested
        self.found = found
        self.left: list[Iterator[Arrangement]] = []
        self.seen: set[tuple[object, ...]] = set()
        self.turn = Turn()
        self._until = time.monotonic() + LONGEST

    @property
    def full(self) -> bool:
        return len(self.found.arrangements) >= self.limit

    def look_at(self, tree: Tree) -> None:
        self.found.providers.update((provider.uuid, provider) for provider in tree)
        ways = arrangements(self.ask, tree, self._sharing_with(tree), nested=self.nested)
        if self._next(ways):
            self.left.append(ways)

    @property
    def late(self) -> bool:
        return time.monotonic() >= self._until

    async def go_round(self) -> None:
        """One more arrangement of each tree that has one."""
        going, self.left = self.left, []
        for ways in going:
            if self.full or self.late:
                return
            if self._next(ways):
                self.left.append(ways)
            await self.turn.over()

    def _next(self, ways: Iterator[Arrangement]) -> bool:
        for arrangement in ways:
            if self._is_new(arrangement):
                self.found.arrangements.append(arrangement)
                return True
        return False

    def _is_new(self, arrangement: Arrangement) -> bool:
        """Several trees may have in common what sharing providers give alone."""
        if not self.shared.issuperset(arrangement.allocations):
            return True
        key = identity(arrangement)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def _sharing_with(self, tree: Tree) -> Sequence[Provider]:
        if not self.sharing:
            return ()
        aggregates = frozenset().union(*(provider.aggregates for provider in tree))
        roots = {p.root for p in self.sharing if p.root != tree[0].root and p.aggregates & aggregates}
        return [provider for provider in self.sharing if provider.root in roots] if roots else ()


def identity(arrangement: Arrangement) -> tuple[object, ...]:
    """What makes two arrangements the same: the same amounts, and the same providers for the same groups."""
    return (
        frozenset((uuid, *taken) for uuid, given in arrangement.allocations.items() for taken in given.items()),
        frozenset((suffix, *sorted(uuids)) for suffix, uuids in arrangement.mappings.items()),
    )


def in_trees_of(used: Iterable[str], providers: dict[str, Provider]) -> list[Provider]:
    """The providers of every tree that one of the used ones stands in."""
    roots = {providers[uuid].root for uuid in used}
    return [provider for provider in providers.values() if provider.root in roots]
