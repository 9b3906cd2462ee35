"""Compares stored providers with reported providers, and plans how allocations move when a host's tree changes shape.

Does not access the database. See docs/decisions/0010-host-shapes.md for the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kilonova.placement.host_providers import InventoryLike, ReportedProvider, ReportedProviders
from kilonova.placement.model import Allocation
from kilonova.store import Row


class InventoryAmounts(NamedTuple):
    """The amounts and the ratio of an inventory's row."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class StoredInventory(NamedTuple):
    """An inventory's row.

    `host_ratio` is the allocation ratio that the host reports, None if an operator made the inventory.
    `aggregate_ratio` is the ratio in the metadata of the host's aggregates.
    """

    amounts: InventoryAmounts
    host_ratio: float | None
    aggregate_ratio: float | None = None

    @classmethod
    def new(cls, reported: InventoryLike, sibling: StoredInventory | None = None) -> StoredInventory:
        """An inventory to insert. It inherits a ratio that an operator or an aggregate has set on `sibling`."""
        host_ratio = reported.allocation_ratio
        if sibling is not None and (sibling.aggregate_ratio is not None or sibling.host_ratio == host_ratio):
            return cls(_amounts(reported, sibling.amounts.allocation_ratio), host_ratio, sibling.aggregate_ratio)
        return cls(_amounts(reported, host_ratio), host_ratio)

    @classmethod
    def from_row(cls, row: Row) -> StoredInventory:
        amounts = InventoryAmounts(
            row["total"], row["reserved"], row["min_unit"], row["max_unit"], row["step_size"], row["allocation_ratio"]
        )
        return cls(amounts, row["own_ratio"], row["aggregate_ratio"])

    def updated(self, reported: InventoryLike) -> StoredInventory:
        """The inventory after this report. The ratio stays, unless the host reports another one than before."""
        ratio, host_ratio = self.amounts.allocation_ratio, reported.allocation_ratio
        if self.aggregate_ratio is None and self.host_ratio is not None and self.host_ratio != host_ratio:
            ratio = host_ratio
        return StoredInventory(_amounts(reported, ratio), host_ratio, self.aggregate_ratio)

    def closed(self) -> StoredInventory:
        """The inventory with everything reserved: allocations stay, and nothing more can be claimed."""
        return self._replace(amounts=self.amounts._replace(reserved=self.amounts.total))

    def can_allocate(self, amount: int, used: int) -> bool:
        amounts = self.amounts
        return (
            amounts.min_unit <= amount <= amounts.max_unit
            and amount % amounts.step_size == 0
            and used + amount <= (amounts.total - amounts.reserved) * amounts.allocation_ratio
        )


class StoredProvider(NamedTuple):
    """A provider's rows. Traits and aggregates are keyed by whether a host reported them."""

    id: int
    uuid: str
    name: str
    parent_id: int | None
    reported: bool
    inventory: dict[str, StoredInventory]
    traits: dict[bool, frozenset[str]]
    aggregates: dict[bool, frozenset[str]]

    def lost_classes(self, reported: ReportedProvider | None) -> list[str]:
        """The classes whose inventories the host no longer reports."""
        kept = reported.inventory if reported is not None else {}
        return [name for name, one in self.inventory.items() if one.host_ratio is not None and name not in kept]


class AllocationMove(NamedTuple):
    """A move of an allocation to the provider with the uuid `target`."""

    allocation: Allocation
    target: str


class CannotReshape(Exception):
    """The allocations do not fit into the reported shape. The message says why."""


class StoredProviders:
    """The providers in the database, by uuid, and as trees by the uuid of the host's root provider."""

    def __init__(self) -> None:
        self.by_uuid: dict[str, StoredProvider] = {}
        self.trees: dict[str, list[StoredProvider]] = {}

    def differs(self, root: str, reported: Sequence[ReportedProvider]) -> bool:
        """Whether the reported tree may differ from the stored tree."""
        if any(self._provider_differs(provider) for provider in reported):
            return True
        tree = self.trees[root]
        if len(tree) == len(reported):
            return False
        uuids = {provider.uuid for provider in reported}
        return any(stored.reported and stored.uuid not in uuids for stored in tree)

    def target_inventories(self, root: str, reported: ReportedProvider) -> dict[str, StoredInventory]:
        """The inventories that the provider will have after this report, by class."""
        stored = self.by_uuid.get(reported.uuid)
        before = stored.inventory if stored is not None else {}
        return {
            name: before[name].updated(one) if name in before else StoredInventory.new(one, self._sibling(root, name))
            for name, one in reported.inventory.items()
        }

    def _sibling(self, root: str, name: str) -> StoredInventory | None:
        """A reported inventory of the class on another provider of the tree."""
        siblings = (stored.inventory[name] for stored in self.trees.get(root, ()) if name in stored.inventory)
        return next((one for one in siblings if one.host_ratio is not None), None)

    def _provider_differs(self, reported: ReportedProvider) -> bool:
        stored = self.by_uuid.get(reported.uuid)
        if stored is None or not stored.reported or stored.name != reported.name:
            return True
        if reported.parent is not None and stored.parent_id != self.by_uuid[reported.parent].id:
            return True
        if changed_names(reported.traits, stored.traits) or changed_names(reported.aggregates, stored.aggregates):
            return True
        before, after = stored.inventory, reported.inventory
        if any(name not in before or before[name].updated(one) != before[name] for name, one in after.items()):
            return True
        return len(before) > len(after) and bool(stored.lost_classes(reported))


def changed_names(
    reported: frozenset[str], stored: Mapping[bool, frozenset[str]]
) -> tuple[frozenset[str], frozenset[str]] | None:
    """The names to add and to remove. Names that an operator added stay, even if the host reports them too."""
    before = stored.get(True, frozenset())
    if before == reported:
        return None
    add, remove = reported - before - stored.get(False, frozenset()), before - reported
    return (add, remove) if add or remove else None


class ReshapePlan(NamedTuple):
    """The changes to a tree: allocations to move, inventories to close or to delete, providers to delete."""

    moves: list[AllocationMove]
    closed: list[tuple[StoredProvider, str]]
    dropped: list[tuple[StoredProvider, str]]
    deleted: list[StoredProvider]


# Uuids and future inventories of the providers that allocations may move to.
_Targets = list[tuple[str, dict[str, StoredInventory]]]


class ReshapePlanner:
    """Plans trees one by one. `used`, by provider uuid and class, grows with each planned move."""

    def __init__(
        self, reported: ReportedProviders, stored: StoredProviders, used: Mapping[tuple[str, str], int]
    ) -> None:
        self._reported = reported
        self._stored = stored
        self._used = dict(used)

    def plan(self, root: str, affected: Sequence[Allocation]) -> ReshapePlan:
        """Plan a tree. `affected` are the allocations on inventories that it no longer has. Raises CannotReshape."""
        moving = {name for name in {one.resource_class for one in affected} if self._is_elsewhere(root, name)}
        moves = self._move([one for one in affected if one.resource_class in moving], self._targets(root))
        staying = {(one.provider_id, one.resource_class) for one in affected if one.resource_class not in moving}
        reported = {provider.uuid: provider for provider in self._reported.trees[root]}
        tree = self._stored.trees.get(root, [])
        closed: list[tuple[StoredProvider, str]] = []
        dropped: list[tuple[StoredProvider, str]] = []
        # The sources of moves are deleted by a later sync: a concurrent release may be waiting for their row locks.
        kept = {move.allocation.provider_id for move in moves}
        for stored in tree:
            for name in stored.lost_classes(reported.get(stored.uuid)):
                (closed if (stored.id, name) in staying else dropped).append((stored, name))
            has_operator_inventory = any(one.host_ratio is None for one in stored.inventory.values())
            if stored.uuid in reported or not stored.reported or has_operator_inventory:
                kept.add(stored.id)
        kept.update(stored.id for stored, _ in closed)
        return ReshapePlan(moves, closed, dropped, _without_kept(tree, kept))

    def _is_elsewhere(self, root: str, name: str) -> bool:
        """Whether another provider of the tree has more of the class than before."""
        return any(self._grows(root, provider, name) for _, provider in self._reachable(root))

    def _grows(self, root: str, reported: ReportedProvider, name: str) -> bool:
        if name not in reported.inventory:
            return False
        stored, host = self._stored.by_uuid.get(reported.uuid), self._stored.by_uuid.get(root)
        if stored is None or name not in stored.inventory:
            return True
        joined = frozenset().union(*host.aggregates.values()) if host is not None else frozenset[str]()
        if reported.uuid in self._reported.sharing_by_host.get(root, ()) and not reported.aggregates <= joined:
            return True
        return reported.inventory[name].total > stored.inventory[name].amounts.total

    def _reachable(self, root: str) -> list[tuple[str, ReportedProvider]]:
        """The tree's own providers, then its sharing providers, each with the root of its tree."""
        roots = (root, *self._reported.sharing_by_host.get(root, ()))
        return [(tree, provider) for tree in roots for provider in self._reported.trees.get(tree, ())]

    def _targets(self, root: str) -> _Targets:
        return [
            (provider.uuid, self._stored.target_inventories(tree, provider)) for tree, provider in self._reachable(root)
        ]

    def _move(self, allocations: Sequence[Allocation], targets: _Targets) -> list[AllocationMove]:
        """Find a target for each allocation, or raise CannotReshape.

        A consumer's allocations on one provider stay together where possible, such as a server's VCPU and MEMORY_MB.
        """
        before = dict(self._used)
        together: dict[tuple[str, int], list[Allocation]] = {}
        for one in allocations:
            together.setdefault((one.consumer_uuid, one.provider_id), []).append(one)
        moves: list[AllocationMove] = []
        try:
            # Largest first: small allocations fit into what is left.
            for group in sorted(together.values(), key=lambda group: -max(one.used for one in group)):
                moves += self._move_together(group, targets)
        except CannotReshape:
            self._used = before
            raise
        return moves

    def _move_together(self, allocations: list[Allocation], targets: _Targets) -> list[AllocationMove]:
        for uuid, inventories in targets:
            if all(self._fits(uuid, inventories, one) for one in allocations):
                return [self._add_usage(uuid, one) for one in allocations]
        moves = []
        for one in allocations:
            target = next((uuid for uuid, inventories in targets if self._fits(uuid, inventories, one)), None)
            if target is None:
                raise CannotReshape(
                    f"no provider has room for {one.used} {one.resource_class} of consumer {one.consumer_uuid}"
                )
            moves.append(self._add_usage(target, one))
        return moves

    def _fits(self, uuid: str, inventories: Mapping[str, StoredInventory], one: Allocation) -> bool:
        inventory = inventories.get(one.resource_class)
        return inventory is not None and inventory.can_allocate(one.used, self._used.get((uuid, one.resource_class), 0))

    def _add_usage(self, uuid: str, one: Allocation) -> AllocationMove:
        key = uuid, one.resource_class
        self._used[key] = self._used.get(key, 0) + one.used
        return AllocationMove(one, uuid)


def _without_kept(tree: Sequence[StoredProvider], kept: set[int]) -> list[StoredProvider]:
    """The providers that are neither kept nor ancestors of kept providers."""
    parents = {stored.id: stored.parent_id for stored in tree}
    for provider_id in list(kept):
        parent = parents.get(provider_id)
        while parent is not None and parent not in kept:
            kept.add(parent)
            parent = parents.get(parent)
    return [stored for stored in tree if stored.id not in kept]


def _amounts(reported: InventoryLike, ratio: float) -> InventoryAmounts:
    unit = reported.total if reported.max_unit is None else reported.max_unit
    return InventoryAmounts(reported.total, reported.reserved, reported.min_unit, unit, reported.step_size, ratio)
