"""SQL conditions on a provider for the requirements of a request group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kilonova.placement.allocations import USED_AMOUNT
from kilonova.placement.candidates.model import RequestGroup

# The cast makes SQLite scan the provider's few rows instead of looking up every requested name in the index.
_OWN_TRAIT, _OWN_AGGREGATE = "CAST(t.trait AS TEXT)", "CAST(g.aggregate_uuid AS TEXT)"


def all_of(conditions: Iterable[str]) -> str:
    """The conjunction, as a balanced tree: databases limit the depth of expressions to about a thousand."""
    terms = list(conditions) or ["TRUE"]
    while len(terms) > 1:
        terms = [f"({' AND '.join(terms[n : n + 2])})" for n in range(0, len(terms), 2)]
    return terms[0]


class Conditions:
    """Conditions that share one list of arguments. `provider` is an SQL expression for a provider's id.

    PostgreSQL turns every EXISTS into a join and searches for the best join order, which takes minutes for hundreds of
    them. `separate` makes it evaluate them one by one.
    """

    def __init__(self, *, separate: bool = False) -> None:
        self.arguments: list[object] = []
        self._suffix = " LIMIT 1 OFFSET 0" if separate else ""

    def add_argument(self, value: object) -> str:
        self.arguments.append(value)
        return f"${len(self.arguments)}"

    def add_text(self, value: str) -> str:
        return f"CAST({self.add_argument(value)} AS TEXT)"

    def has_capacity(self, provider: str, resources: Mapping[str, int]) -> list[str]:
        return [self._has_capacity_for(provider, name, amount) for name, amount in resources.items()]

    def _has_capacity_for(self, provider: str, name: str, amount: int) -> str:
        requested = f"CAST({self.add_argument(amount)} AS BIGINT)"
        return f"""EXISTS (
            SELECT 1 FROM inventories i
            WHERE i.provider_id = {provider} AND i.resource_class = {self.add_text(name)}
              AND {requested} BETWEEN i.min_unit AND i.max_unit AND {requested} % i.step_size = 0
              AND (i.total - i.reserved) * i.allocation_ratio >= {requested} + {USED_AMOUNT}{self._suffix})"""

    def has_traits(self, provider: str, group: RequestGroup) -> list[str]:
        return [self.has_any_trait(provider, any_of) for any_of in group.required]

    def lacks_traits(self, provider: str, group: RequestGroup) -> list[str]:
        return [f"NOT {self.has_any_trait(provider, group.forbidden)}"] if group.forbidden else []

    def has_any_trait(self, provider: str, traits: Collection[str]) -> str:
        listed = self.add_argument(sorted(traits))
        had = f"t.provider_id = {provider} AND {_OWN_TRAIT} = ANY({listed})"
        return f"EXISTS (SELECT 1 FROM provider_traits t WHERE {had}{self._suffix})"

    def in_aggregates(self, provider: str, group: RequestGroup, root: str | None = None) -> list[str]:
        """With `root`, the aggregates of that provider count too."""
        conditions = [self._in_any_aggregate(provider, root, any_of) for any_of in group.member_of]
        if group.forbidden_aggregates:
            conditions.append(f"NOT {self._in_any_aggregate(provider, root, group.forbidden_aggregates)}")
        return conditions

    def _in_any_aggregate(self, provider: str, root: str | None, aggregates: Collection[str]) -> str:
        of_provider = f"g.provider_id = {provider}" if root is None else f"g.provider_id IN ({provider}, {root})"
        joined = f"{of_provider} AND {_OWN_AGGREGATE} = ANY({self.add_argument(sorted(aggregates))})"
        return f"EXISTS (SELECT 1 FROM provider_aggregates g WHERE {joined}{self._suffix})"

    def in_tree(self, root: str, group: RequestGroup) -> list[str]:
        if group.in_tree is None:
            return []
        uuid = self.add_text(group.in_tree)
        return [f"{root} = (SELECT m.root_id FROM resource_providers m WHERE m.uuid = {uuid})"]
