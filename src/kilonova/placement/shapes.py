"""How the providers in the database differ from what hosts tell, and what becomes of allocations when shapes change.

Nothing here touches the database. See docs/decisions/0010-host-shapes.md for the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kilonova.placement.facts import InventoryLike, Told, Wanted
from kilonova.store import Row


class Amounts(NamedTuple):
    """An inventory as its row has it."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class Stock(NamedTuple):
    """An inventory, the ratio that its host wishes (none if no host speaks of it), and the one aggregates impose."""

    amounts: Amounts
    own: float | None
    imposed: float | None = None

    @classmethod
    def told(cls, told: InventoryLike, like: Stock | None = None) -> Stock:
        """A new one. Its ratio is that of one like it, where an operator or an aggregate has set that."""
        wish = told.allocation_ratio
        if like is not None and (like.imposed is not None or like.own == wish):
            return cls(_amounts(told, like.amounts.allocation_ratio), wish, like.imposed)
        return cls(_amounts(told, wish), wish)

    @classmethod
    def of_row(cls, row: Row) -> Stock:
        amounts = Amounts(
            row["total"], row["reserved"], row["min_unit"], row["max_unit"], row["step_size"], row["allocation_ratio"]
        )
        return cls(amounts, row["own_ratio"], row["aggregate_ratio"])

    def follow(self, told: InventoryLike) -> Stock:
        """What it is to be now. The ratio stays, unless the host wishes another than before."""
        ratio, wish = self.amounts.allocation_ratio, told.allocation_ratio
        if self.imposed is None and self.own is not None and self.own != wish:
            ratio = wish
        return Stock(_amounts(told, ratio), wish, self.imposed)

    def closed(self) -> Stock:
        """The same to those who have some of it, and nothing to others."""
        return self._replace(amounts=self.amounts._replace(reserved=self.amounts.total))

    def gives(self, amount: int, used: int) -> bool:
        has = self.amounts
        return (
            has.min_unit <= amount <= has.max_unit
            and amount % has.step_size == 0
            and used + amount <= (has.total - has.reserved) * has.allocation_ratio
        )


class Known(NamedTuple):
    """A provider as the database has it. Traits and aggregates stand apart by whether a host told them."""

    id: int
    uuid: str
    name: str
    parent_id: int | None
    reported: bool
    inventory: dict[str, Stock]
    traits: dict[bool, frozenset[str]]
    aggregates: dict[bool, frozenset[str]]

    def lost(self, wanted: Wanted | None) -> list[str]:
        """The classes that a host spoke of and no longer does."""
        told = wanted.inventory if wanted is not None else {}
        return [name for name, stock in self.inventory.items() if stock.own is not None and name not in told]


class Held(NamedTuple):
    """One allocation."""

    consumer: str
    provider: int
    resource_class: str
    used: int


class Move(NamedTuple):
    """An allocation that goes to another provider."""

    held: Held
    target: str


class Misfit(Exception):
    """Why a host cannot have the shape it tells."""


class Picture:
    """The providers in the database: of whole trees, by their group's uuid, and all by their own."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        self.trees: dict[str, list[Known]] = {}

    def differs(self, group: str, told: Sequence[Wanted]) -> bool:
        """Whether anything of the group may have to be written."""
        if any(self._one_differs(one) for one in told):
            return True
        tree = self.trees[group]
        if len(tree) == len(told):
            return False
        names = {one.uuid for one in told}
        return any(known.reported and known.uuid not in names for known in tree)

    def stocks(self, group: str, wanted: Wanted) -> dict[str, Stock]:
        """What a provider of the group is to have of each class that is told of it."""
        known = self.known.get(wanted.uuid)
        had = known.inventory if known is not None else {}
        return {
            name: had[name].follow(told) if name in had else Stock.told(told, self._like(group, name))
            for name, told in wanted.inventory.items()
        }

    def _like(self, group: str, name: str) -> Stock | None:
        """What the group has of the class elsewhere, as its hosts tell it."""
        told = (known.inventory[name] for known in self.trees.get(group, ()) if name in known.inventory)
        return next((stock for stock in told if stock.own is not None), None)

    def _one_differs(self, wanted: Wanted) -> bool:
        known = self.known.get(wanted.uuid)
        if known is None or not known.reported or known.name != wanted.name:
            return True
        if wanted.parent is not None and known.parent_id != self.known[wanted.parent].id:
            return True
        if news(wanted.traits, known.traits) or news(wanted.aggregates, known.aggregates):
            return True
        had, told = known.inventory, wanted.inventory
        if any(name not in had or had[name].follow(one) != had[name] for name, one in told.items()):
            return True
        return len(had) > len(told) and bool(known.lost(wanted))


def news(wanted: frozenset[str], known: Mapping[bool, frozenset[str]]) -> tuple[frozenset[str], frozenset[str]] | None:
    """Which names to add and which to remove. What operators said stays, also if the host says the same."""
    told = known.get(True, frozenset())
    if told == wanted:
        return None
    add, remove = wanted - told - known.get(False, frozenset()), told - wanted
    return (add, remove) if add or remove else None


class Fate(NamedTuple):
    """What becomes of a group: its allocations that move, its inventories that are lost, and providers that go."""

    moves: list[Move]
    closed: list[tuple[Known, str]]
    dropped: list[tuple[Known, str]]
    gone: list[Known]


class Planner:
    """`used` is what is taken already, by provider uuid and class; it grows with what moves."""

    def __init__(self, told: Told, picture: Picture, used: Mapping[tuple[str, str], int]) -> None:
        self._told = told
        self._picture = picture
        self._used = dict(used)

    def fate(self, group: str, held: Sequence[Held]) -> Fate:
        """`held`: the allocations on inventories that the group has lost. Raises Misfit."""
        moving = {name for name in {one.resource_class for one in held} if self._is_elsewhere(group, name)}
        moves = self._settle([one for one in held if one.resource_class in moving], self._homes(group))
        staying = {(one.provider, one.resource_class) for one in held if one.resource_class not in moving}
        wanted = {one.uuid: one for one in self._told.groups[group]}
        tree = self._picture.trees.get(group, [])
        closed: list[tuple[Known, str]] = []
        dropped: list[tuple[Known, str]] = []
        # A provider that allocations just left goes next time: whoever is about to release them waits for its row.
        kept = {move.held.provider for move in moves}
        for known in tree:
            for name in known.lost(wanted.get(known.uuid)):
                (closed if (known.id, name) in staying else dropped).append((known, name))
            operators = any(stock.own is None for stock in known.inventory.values())
            if known.uuid in wanted or not known.reported or operators:
                kept.add(known.id)
        kept.update(known.id for known, _ in closed)
        return Fate(moves, closed, dropped, _unneeded(tree, kept))

    def _is_elsewhere(self, group: str, name: str) -> bool:
        """Whether the group has the class in another place instead: more of it there than before."""
        return any(self._grows(group, one, name) for one in self._providers(group))

    def _grows(self, group: str, one: Wanted, name: str) -> bool:
        if name not in one.inventory:
            return False
        known, host = self._picture.known.get(one.uuid), self._picture.known.get(group)
        if known is None or name not in known.inventory:
            return True
        joined = frozenset().union(*host.aggregates.values()) if host is not None else frozenset[str]()
        if one.uuid in self._told.shares.get(group, ()) and not one.aggregates <= joined:
            return True
        return one.inventory[name].total > known.inventory[name].amounts.total

    def _providers(self, group: str) -> list[Wanted]:
        return [one for _, one in self._parts(group)]

    def _parts(self, group: str) -> list[tuple[str, Wanted]]:
        """The group's own providers, then those it shares with others."""
        groups = (group, *self._told.shares.get(group, ()))
        return [(part, one) for part in groups for one in self._told.groups.get(part, ())]

    def _homes(self, group: str) -> list[tuple[str, dict[str, Stock]]]:
        return [(one.uuid, self._picture.stocks(part, one)) for part, one in self._parts(group)]

    def _settle(self, held: Sequence[Held], homes: list[tuple[str, dict[str, Stock]]]) -> list[Move]:
        """Find a home for each of these, or raise Misfit.

        What a consumer had from one provider stays together where it can: a server's processors and its memory.
        """
        before = dict(self._used)
        together: dict[tuple[str, int], list[Held]] = {}
        for one in held:
            together.setdefault((one.consumer, one.provider), []).append(one)
        moves: list[Move] = []
        try:
            # The largest first: small ones find a place in what is left.
            for group in sorted(together.values(), key=lambda group: -max(one.used for one in group)):
                moves += self._settle_together(group, homes)
        except Misfit:
            self._used = before
            raise
        return moves

    def _settle_together(self, group: list[Held], homes: list[tuple[str, dict[str, Stock]]]) -> list[Move]:
        for uuid, has in homes:
            if all(self._fits(uuid, has, one) for one in group):
                return [self._take(uuid, one) for one in group]
        moves = []
        for one in group:
            home = next((uuid for uuid, has in homes if self._fits(uuid, has, one)), None)
            if home is None:
                raise Misfit(f"{one.used} {one.resource_class} of consumer {one.consumer} fit into no part of it")
            moves.append(self._take(home, one))
        return moves

    def _fits(self, uuid: str, has: Mapping[str, Stock], one: Held) -> bool:
        stock = has.get(one.resource_class)
        return stock is not None and stock.gives(one.used, self._used.get((uuid, one.resource_class), 0))

    def _take(self, uuid: str, one: Held) -> Move:
        key = uuid, one.resource_class
        self._used[key] = self._used.get(key, 0) + one.used
        return Move(one, uuid)


def _unneeded(tree: Sequence[Known], kept: set[int]) -> list[Known]:
    """Those that are not kept, nor have anything kept below them."""
    parents = {known.id: known.parent_id for known in tree}
    for provider_id in list(kept):
        above = parents.get(provider_id)
        while above is not None and above not in kept:
            kept.add(above)
            above = parents.get(above)
    return [known for known in tree if known.id not in kept]


def _amounts(told: InventoryLike, ratio: float) -> Amounts:
    unit = told.total if told.max_unit is None else told.max_unit
    return Amounts(told.total, told.reserved, told.min_unit, unit, told.step_size, ratio)
