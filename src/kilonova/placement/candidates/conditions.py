"""What a group asks of one provider, as SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kilonova.placement.candidates.model import Group

# A provider has few of them. The cast keeps SQLite from looking up every one that was asked for instead.
_OWN_TRAIT, _OWN_AGGREGATE = "CAST(t.trait AS TEXT)", "CAST(g.aggregate_uuid AS TEXT)"


def every(conditions: Iterable[str]) -> str:
    """All of them, in pairs of pairs: databases refuse expressions that are nested a thousand deep."""
    said = list(conditions) or ["TRUE"]
    while len(said) > 1:
        said = [f"({' AND '.join(said[n : n + 2])})" for n in range(0, len(said), 2)]
    return said[0]


class Conditions:
    """Conditions that share one list of arguments. `provider` is SQL that names a provider's id.

    PostgreSQL makes a join of every EXISTS and looks for their best order, which is good for a few and takes minutes
    for hundreds. Where they are `apart` it asks one after the other.
    """

    def __init__(self, *, apart: bool = False) -> None:
        self.arguments: list[Any] = []
        self._end = " LIMIT 1 OFFSET 0" if apart else ""

    def put(self, value: Any) -> str:
        self.arguments.append(value)
        return f"${len(self.arguments)}"

    def text(self, value: str) -> str:
        return f"CAST({self.put(value)} AS TEXT)"

    def gives(self, provider: str, resources: Mapping[str, int]) -> list[str]:
        return [self._gives(provider, name, amount) for name, amount in resources.items()]

    def _gives(self, provider: str, name: str, amount: int) -> str:
        wanted = f"CAST({self.put(amount)} AS BIGINT)"
        return f"""EXISTS (
            SELECT 1 FROM inventories i
            WHERE i.provider_id = {provider} AND i.resource_class = {self.text(name)}
              AND {wanted} BETWEEN i.min_unit AND i.max_unit AND {wanted} % i.step_size = 0
              AND (i.total - i.reserved) * i.allocation_ratio >= {wanted} + COALESCE((
                    SELECT CAST(SUM(a.used) AS BIGINT) FROM allocations a
                    WHERE a.provider_id = i.provider_id AND a.resource_class = i.resource_class), 0){self._end})"""

    def has_traits(self, provider: str, group: Group) -> list[str]:
        return [self.has_one(provider, any_of) for any_of in group.required]

    def lacks_traits(self, provider: str, group: Group) -> list[str]:
        return [f"NOT {self.has_one(provider, group.forbidden)}"] if group.forbidden else []

    def has_one(self, provider: str, traits: Collection[str]) -> str:
        listed = self.put(sorted(traits))
        had = f"t.provider_id = {provider} AND {_OWN_TRAIT} = ANY({listed})"
        return f"EXISTS (SELECT 1 FROM provider_traits t WHERE {had}{self._end})"

    def is_member(self, provider: str, group: Group, root: str | None = None) -> list[str]:
        """With a `root`, that one's aggregates count too."""
        said = [self._in_one(provider, root, any_of) for any_of in group.member_of]
        if group.forbidden_aggregates:
            said.append(f"NOT {self._in_one(provider, root, group.forbidden_aggregates)}")
        return said

    def _in_one(self, provider: str, root: str | None, aggregates: Collection[str]) -> str:
        whose = f"g.provider_id = {provider}" if root is None else f"g.provider_id IN ({provider}, {root})"
        joined = f"{whose} AND {_OWN_AGGREGATE} = ANY({self.put(sorted(aggregates))})"
        return f"EXISTS (SELECT 1 FROM provider_aggregates g WHERE {joined}{self._end})"

    def in_tree(self, root: str, group: Group) -> list[str]:
        if group.in_tree is None:
            return []
        uuid = self.text(group.in_tree)
        return [f"{root} = (SELECT m.root_id FROM resource_providers m WHERE m.uuid = {uuid})"]
