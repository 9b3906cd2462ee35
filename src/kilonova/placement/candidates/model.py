"""A request for resources, the providers to search, and a resulting allocation request.

`GET /allocation_candidates` and the scheduler use the same structures.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

UNNUMBERED = ""


class RequestGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A request group. One provider serves a whole numbered group; the unnumbered group may be split over providers.

    A provider matches a set in `required` or `member_of` if it has one of its members.
    """

    resources: Mapping[str, int] = {}
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    forbidden_aggregates: frozenset[str] = frozenset()
    in_tree: str | None = None


class ResourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for resources. `groups` is keyed by suffix; the unnumbered group has an empty suffix."""

    groups: Mapping[str, RequestGroup]
    isolate: bool = False
    """Whether each numbered group needs a provider of its own (`group_policy=isolate`)."""
    same_subtree: tuple[frozenset[str], ...] = ()
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()


class InventoryUsage(msgspec.Struct, frozen=True):
    """An inventory and its usage. `capacity` is (total - reserved) * allocation_ratio."""

    capacity: float
    used: int
    min_unit: int = 1
    max_unit: int = 2**31 - 1
    step_size: int = 1

    def can_allocate(self, amount: int) -> bool:
        return (
            self.used + amount <= self.capacity
            and self.min_unit <= amount <= self.max_unit
            and amount % self.step_size == 0
        )


class Provider(msgspec.Struct, frozen=True):
    """A provider as the search sees it. The `root` of a root provider is its own uuid."""

    uuid: str
    parent: str | None
    root: str
    inventories: Mapping[str, InventoryUsage]
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


class AllocationRequest(msgspec.Struct, frozen=True):
    """Allocations that serve a request, by provider uuid and class. `mappings` has the providers of each group."""

    root: str
    allocations: dict[str, dict[str, int]]
    mappings: dict[str, list[str]]
