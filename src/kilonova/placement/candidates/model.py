"""What is asked of placement, what there is, and what an answer looks like.

`GET /allocation_candidates` and the scheduler ask in the same words and get the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

UNNUMBERED = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that belong together: one provider gives all of them, except those of the unnumbered group.

    Of each set in `required` and in `member_of` one is enough.
    """

    resources: Mapping[str, int] = {}
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    forbidden_aggregates: frozenset[str] = frozenset()
    in_tree: str | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Groups by their suffix; that of the unnumbered group is empty."""

    groups: Mapping[str, Group]
    isolate: bool = False
    """Whether numbered groups must come from different providers."""
    same_subtree: tuple[frozenset[str], ...] = ()
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()


class Stock(msgspec.Struct, frozen=True):
    """What a provider has of one class. `capacity` is without what is reserved and with the allocation ratio."""

    capacity: float
    used: int
    min_unit: int = 1
    max_unit: int = 2**31 - 1
    step_size: int = 1

    def gives(self, amount: int) -> bool:
        return (
            self.used + amount <= self.capacity
            and self.min_unit <= amount <= self.max_unit
            and amount % self.step_size == 0
        )


class Provider(msgspec.Struct, frozen=True):
    """A provider as the search sees it. A root names itself as its root."""

    uuid: str
    parent: str | None
    root: str
    stocks: Mapping[str, Stock]
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


class Arrangement(msgspec.Struct, frozen=True):
    """One way to meet an ask: how much of what from whom, and which groups each provider serves."""

    root: str
    allocations: dict[str, dict[str, int]]
    mappings: dict[str, list[str]]
