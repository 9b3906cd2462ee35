"""What a group asks of one provider, as SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kilonova.placement.candidates.model import Group


class Conditions:
    """Conditions that share one list of arguments. `provider` is SQL that names a provider's id."""

    def __init__(self) -> None:
        self.arguments: list[Any] = []

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
                    WHERE a.provider_id = i.provider_id AND a.resource_class = i.resource_class), 0))"""

    def has_traits(self, provider: str, group: Group) -> list[str]:
        return [self.has_one(provider, any_of) for any_of in group.required]

    def lacks_traits(self, provider: str, group: Group) -> list[str]:
        return [f"NOT {self.has_one(provider, group.forbidden)}"] if group.forbidden else []

    def has_one(self, provider: str, traits: Collection[str]) -> str:
        listed = self.put(sorted(traits))
        return f"EXISTS (SELECT 1 FROM provider_traits t WHERE t.provider_id = {provider} AND t.trait = ANY({listed}))"

    def is_member(self, provider: str, group: Group, root: str | None = None) -> list[str]:
        """With a `root`, that one's aggregates count too."""
        said = [self._in_one(provider, root, any_of) for any_of in group.member_of]
        if group.forbidden_aggregates:
            said.append(f"NOT {self._in_one(provider, root, group.forbidden_aggregates)}")
        return said

    def _in_one(self, provider: str, root: str | None, aggregates: Collection[str]) -> str:
        whose = f"g.provider_id = {provider}" if root is None else f"g.provider_id IN ({provider}, {root})"
        listed = self.put(sorted(aggregates))
        return f"EXISTS (SELECT 1 FROM provider_aggregates g WHERE {whose} AND g.aggregate_uuid = ANY({listed}))"

    def in_tree(self, root: str, group: Group) -> list[str]:
        if group.in_tree is None:
            return []
        uuid = self.text(group.in_tree)
        return [f"{root} = (SELECT m.root_id FROM resource_providers m WHERE m.uuid = {uuid})"]
