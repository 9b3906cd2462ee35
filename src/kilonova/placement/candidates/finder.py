"""Finds allocation candidates: reads provider trees from the database and searches each of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kilonova.http.loop_yielder import LoopYielder
from kilonova.placement.candidates import provider_trees
from kilonova.placement.candidates.model import AllocationRequest, Provider, ResourceRequest
from kilonova.placement.candidates.provider_trees import Tree
from kilonova.placement.candidates.search import allocation_requests
from kilonova.store import Reader

# Without this limit a few groups on a large tree could exhaust the memory.
MAX_CANDIDATES = 100_000
# Limit for the second and further allocation requests of each tree.
MAX_WITH_ALTERNATIVES = 10_000
# After this time the search returns the candidates that it has found.
MAX_SEARCH_SECONDS = 10.0


class Candidates(NamedTuple):
    allocation_requests: list[AllocationRequest]
    providers: dict[str, Provider]
    """All providers of the searched trees, by uuid."""


async def find_candidates(
    reader: Reader, request: ResourceRequest, *, limit: int | None = None, nested: bool = True
) -> Candidates:
    """At most `limit` allocation requests. The first of every tree precedes the second of any tree."""
    found = Candidates([], {})
    resolved = await provider_trees.resolve_in_tree(reader, request)
    if resolved is None:
        return found
    sharing = await provider_trees.read_sharing_trees(reader, resolved)
    for tree in sharing:
        found.providers.update((provider.uuid, provider) for provider in tree)
    search = _Finder(resolved, sharing, min(limit or MAX_CANDIDATES, MAX_CANDIDATES), nested, found)
    async for tree in provider_trees.read_matching_trees(reader, resolved, sharing, limit):
        search.add_tree(tree)
        await search.yielder.maybe_yield()
        if search.is_full or search.is_late:
            return found
    search.limit = min(search.limit, MAX_WITH_ALTERNATIVES)
    while search.unfinished and not search.is_full and not search.is_late:
        await search.add_one_of_each_tree()
    return found


class _Finder:
    def __init__(
        self, request: ResourceRequest, sharing: Sequence[Tree], limit: int, nested: bool, found: Candidates
    ) -> None:
        self.request = request
        self.sharing = [provider for tree in sharing for provider in tree]
        self.sharing_uuids = {provider.uuid for provider in self.sharing}
        self.limit = limit
        self.nested = nested
        self.found = found
        self.unfinished: list[Iterator[AllocationRequest]] = []
        self.seen: set[tuple[object, ...]] = set()
        self.yielder = LoopYielder()
        self._until = time.monotonic() + MAX_SEARCH_SECONDS

    @property
    def is_full(self) -> bool:
        return len(self.found.allocation_requests) >= self.limit

    def add_tree(self, tree: Tree) -> None:
        self.found.providers.update((provider.uuid, provider) for provider in tree)
        found = allocation_requests(self.request, tree, self._sharing_with(tree), nested=self.nested)
        if self._take_next(found):
            self.unfinished.append(found)

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._until

    async def add_one_of_each_tree(self) -> None:
        """Take one more allocation request from each tree that has one."""
        unfinished, self.unfinished = self.unfinished, []
        for found in unfinished:
            if self.is_full or self.is_late:
                return
            if self._take_next(found):
                self.unfinished.append(found)
            await self.yielder.maybe_yield()

    def _take_next(self, found: Iterator[AllocationRequest]) -> bool:
        for candidate in found:
            if self._is_new(candidate):
                self.found.allocation_requests.append(candidate)
                return True
        return False

    def _is_new(self, candidate: AllocationRequest) -> bool:
        """False for a duplicate: several trees have the same request if sharing providers alone serve it."""
        if not self.sharing_uuids.issuperset(candidate.allocations):
            return True
        key = identity_key(candidate)
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


def identity_key(candidate: AllocationRequest) -> tuple[object, ...]:
    """Equal for requests with the same allocations and mappings."""
    return (
        frozenset((uuid, *taken) for uuid, given in candidate.allocations.items() for taken in given.items()),
        frozenset((suffix, *sorted(uuids)) for suffix, uuids in candidate.mappings.items()),
    )


def providers_of_trees(used: Iterable[str], providers: dict[str, Provider]) -> list[Provider]:
    """All providers of the trees of the used providers."""
    roots = {providers[uuid].root for uuid in used}
    return [provider for provider in providers.values() if provider.root in roots]
