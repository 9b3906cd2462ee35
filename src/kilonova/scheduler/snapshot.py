"""How the scheduler's picture of all hosts is filled: whatever the feed read of them goes into columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from kilonova.placement.facts import SHARES
from kilonova.placement.providers import Amounts
from kilonova.scheduler.columns import STEP, Columns, Host, Mask
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.machines import Machine
from kilonova.scheduler.stock import Foresight, Stock, longer
from kilonova.scheduler.trees import Marks, MemberFacts, Tree

__all__ = ["Host", "HostFacts", "Hosts", "Marks", "Mask", "Versions"]

_UNREAD = Marks(-1, -1, -1)


class Versions(NamedTuple):
    """Who stood in which row, and how new what was known of them was."""

    uuids: list[str]
    marks: list[Marks]


class HostFacts(msgspec.Struct):
    """One hypervisor as the database has it."""

    provider_id: int
    uuid: str
    service_id: int
    host: str
    hypervisor_hostname: str
    zone: str
    disabled: bool
    disabled_reason: str | None
    forced_down: bool
    inventory: Mapping[str, Amounts]
    used: Mapping[str, int]
    traits: frozenset[str]
    marks: Marks
    aggregates: frozenset[int] = frozenset()
    machine: Machine = Machine()
    address: str = ""
    provider_aggregates: frozenset[str] = frozenset()
    """The aggregates of its own provider, over which others may share with it."""
    children: tuple[MemberFacts, ...] = ()
    """All providers below its own."""
    look: int = 0
    """Which look at the database this is from; a higher one is a later one."""


class Hosts(Columns):
    """The columns, and what it takes to keep them up to date."""

    def __init__(self, default_zone: str = "nova", settings: SchedulerConfig | None = None) -> None:
        super().__init__(default_zone, settings)
        self.foresight = Foresight(self._foresee)
        self._vacant: list[int] = []
        self._silent: frozenset[int] = frozenset()
        self._marks: list[Marks] = []
        self._services: list[int] = []
        self._rows_by_service: dict[int, set[int]] = {}

    def at(self, row: int) -> Host:
        return Host(self, row)

    def providers(self) -> set[int]:
        """Everyone that is known: hosts, the providers below them, and those that share."""
        return self._rows.keys() | self.forest.members.keys()

    def facts(self, row: int) -> int:
        """How new what is known of a host is, its use left aside."""
        return self._marks[row].facts

    def versions(self) -> Versions:
        return Versions(self.uuids.copy(), self._marks.copy())

    def is_still(self, row: int, before: Versions) -> bool:
        """Whether the row is still that of the same host, and nothing but its use has changed."""
        return self.uuids[row] == before.uuids[row] and self._marks[row].facts == before.marks[row].facts

    def marks(self, provider_id: int) -> Marks | None:
        member = self.forest.members.get(provider_id)
        if member is not None:
            return member.marks
        row = self._rows.get(provider_id)
        return None if row is None else self._marks[row]

    def row_of(self, uuid: str) -> int | None:
        return self._rows_by_uuid.get(uuid)

    def names_of(self, providers: Iterable[int]) -> list[str]:
        """The hosts that these providers are, or are below."""
        return [self.names[row] for row in {self._row(provider_id) for provider_id in providers} if row is not None]

    def _row(self, provider_id: int) -> int | None:
        member = self.forest.members.get(provider_id)
        tree = None if member is None else member.tree
        return self._rows.get(provider_id) if tree is None else tree.row

    def provider_of(self, uuid: str) -> int | None:
        """The id of a provider that is a host, below one, or shares."""
        row = self._rows_by_uuid.get(uuid)
        return self.forest.id_of(uuid) if row is None else self._providers[row]

    def concerning(self, uuid: str) -> set[int]:
        """Every provider that a host's room depends on."""
        row = self._rows_by_uuid.get(uuid)
        if row is None:
            return set()
        tree = self.forest.trees.get(self._providers[row])
        own = {self._providers[row]} if tree is None else set(tree.members)
        return own.union(member.id for member in self.sharing.of(row))

    def foresee(self, uuid: str, allocations: Mapping[str, Mapping[str, int]], until: float) -> None:
        """A host was proposed: count what it would take as used, for a while."""
        host = self.provider_of(uuid)
        ids = {one: provider_id for one in allocations if (provider_id := self.provider_of(one)) is not None}
        if host is not None:
            self.foresight.add(host, {provider_id: allocations[one] for one, provider_id in ids.items()}, until)

    def count(self, allocations: Mapping[str, Mapping[str, int]], sign: int) -> None:
        """Have these amounts count as if they were claimed (1), until they are taken back (-1)."""
        for uuid, amounts in allocations.items():
            provider_id = self.provider_of(uuid)
            if provider_id is not None:
                self._foresee(provider_id, amounts, sign)

    def give_up(self, uuid: str) -> None:
        """The host's oldest proposal came to nothing."""
        host = self.provider_of(uuid)
        if host is not None:
            self.foresight.give_up(host, self.concerning(uuid))

    def put(self, host: HostFacts) -> None:
        """Add or replace a host. What was read before something newer is ignored."""
        row = self._rows.get(host.provider_id)
        if row is None:
            row = self._new_row(host.provider_id)
        elif host.marks.change < self._marks[row].change:
            return
        self._set_identity(row, host)
        self.zone[row] = self._zone(host.zone)
        self.enabled[row] = not host.disabled
        self.disabled_reasons[row] = host.disabled_reason
        self.forced_down[row] = host.forced_down
        self.aggregates.assign(row, host.aggregates)
        self.machines.put(row, host.machine, host.address)
        self.up[row] = not host.forced_down and host.service_id not in self._silent
        if host.children or SHARES in host.traits:
            self._set_tree(row, host)
            return
        if self.nested[row]:
            self._fell(row)
        self._set_traits(row, host.traits)
        self._set_provider_aggregates(row, host.provider_aggregates)
        self._have_stocks(host.inventory)
        for name, stock in self._stocks.items():
            stock.set_inventory(row, host.inventory.get(name))
        self._set_used(row, host.used, host.marks)

    def put_sharing(self, facts: MemberFacts, look: int = 0) -> None:
        """Add or replace a provider that shares and is not part of a host."""
        member, claims = self.forest.put(facts, look)
        if member.tree is not None:
            tree, member.tree = member.tree, None
            del tree.members[member.id]
            self._summarise(tree)
        self.foresight.settle(member.id, claims)
        self._have_stocks(facts.inventory)
        if self.sharing.put(member):
            self._assign_all()

    def use(self, provider_id: int, used: Mapping[str, int], marks: Marks) -> None:
        """Replace the used amounts of a provider whose other facts are as they were."""
        member = self.forest.members.get(provider_id)
        row = self._rows.get(provider_id)
        if member is not None:
            claims = member.use(used, marks)
            if row is not None:
                self._marks[row] = member.marks
            self.foresight.settle(provider_id, claims)
            self._touch(provider_id)
        elif row is not None and marks.change >= self._marks[row].change:
            self._set_used(row, used, marks)

    def drop(self, provider_id: int) -> None:
        """Forget a host with all below it, or a provider below one or that shares."""
        row = self._rows.get(provider_id)
        if row is None:
            self._drop_member(provider_id)
            return
        if self.nested[row]:
            self._fell(row)
        self.foresight.drop(provider_id)
        del self._rows[provider_id]
        self._unlink(row)
        self._set_traits(row, frozenset())
        self._set_provider_aggregates(row, frozenset())
        self.aggregates.assign(row, frozenset())
        self.loads.servers[row] = 0
        self.hypervisor_hostnames[row] = ""
        self._marks[row] = _UNREAD
        self.everywhere[row] = False
        self._vacant.append(row)

    def set_servers(self, counts: Mapping[tuple[str, str], int], hosts: Iterable[str]) -> None:
        """Say how many servers each hypervisor of these hosts has."""
        for host in hosts:
            for row in self._rows_by_host.get(host, ()):
                self.loads.servers[row] = counts.get((host, self.hypervisor_hostnames[row]), 0)

    def set_silent(self, services: Collection[int]) -> None:
        """Say which services were not heard of for too long."""
        silent = frozenset(services)
        for service in silent ^ self._silent:
            for row in self._rows_by_service.get(service, ()):
                self.up[row] = not self.forced_down[row] and service not in silent
        self._silent = silent

    def _new_row(self, provider_id: int) -> int:
        if self._vacant:
            row = self._vacant.pop()
        else:
            row = len(self.names)
            if row == self.size:
                self._grow(max(STEP, row // 8))
            for column, value in self._lists():
                column.append(value)
        self._rows[provider_id] = row
        self.everywhere[row] = True
        return row

    def _lists(self) -> list[tuple[list[Any], Any]]:
        return [
            (self.names, ""),
            (self.hypervisor_hostnames, ""),
            (self.uuids, ""),
            (self.disabled_reasons, None),
            (self.trait_sets, frozenset()),
            (self._providers, 0),
            (self._marks, _UNREAD),
            (self._services, 0),
            (self.provider_aggregates, frozenset()),
        ]

    def _grow(self, by: int) -> None:
        self.everywhere = longer(self.everywhere, by)
        self.enabled = longer(self.enabled, by)
        self.up = longer(self.up, by)
        self.forced_down = longer(self.forced_down, by)
        self.zone = longer(self.zone, by)
        self.aggregates.grow(by)
        self.machines.grow(by)
        self.loads.grow(by)
        self.nested = longer(self.nested, by)
        self.sharing.grow(by)
        for name, column in self._partial.items():
            self._partial[name] = longer(column, by)
        for stock in self._stocks.values():
            stock.grow(by)
        for name, column in self._traits.items():
            self._traits[name] = longer(column, by)

    def _set_identity(self, row: int, host: HostFacts) -> None:
        if self.uuids[row]:
            self._unlink(row)
        self.names[row] = host.host
        self.hypervisor_hostnames[row] = host.hypervisor_hostname
        self.uuids[row] = host.uuid
        self._providers[row] = host.provider_id
        self._services[row] = host.service_id
        self._rows_by_uuid[host.uuid] = row
        self._rows_by_host.setdefault(host.host, set()).add(row)
        self._rows_by_service.setdefault(host.service_id, set()).add(row)

    def _unlink(self, row: int) -> None:
        del self._rows_by_uuid[self.uuids[row]]
        _remove(self._rows_by_host, self.names[row], row)
        _remove(self._rows_by_service, self._services[row], row)
        self.uuids[row] = ""

    def _set_traits(self, row: int, traits: frozenset[str]) -> None:
        before = self.trait_sets[row]
        for trait in before - traits:
            self._traits[trait][row] = False
        for trait in traits - before:
            if trait not in self._traits:
                self._traits[trait] = self._nowhere()
            self._traits[trait][row] = True
        self.trait_sets[row] = traits

    def _set_used(self, row: int, used: Mapping[str, int], marks: Marks) -> None:
        before, self._marks[row] = self._marks[row], marks
        if before is not _UNREAD:
            # A claim moves the generation by one: so many of the proposals are most likely the claims now seen.
            self.foresight.settle(self._providers[row], marks.generation - before.generation)
        for name, stock in self._stocks.items():
            stock.set_used(row, used.get(name, 0))

    def _have_stocks(self, classes: Iterable[str]) -> None:
        for name in classes:
            if name not in self._stocks:
                self._stocks[name] = Stock(self.size)

    # Hosts that are more than one provider, and those that share

    def _set_tree(self, row: int, host: HostFacts) -> None:
        tree = self.forest.trees.get(host.provider_id)
        if tree is None:
            self.foresight.drop(host.provider_id)  # it is counted elsewhere from now on
            tree = self.forest.trees[host.provider_id] = Tree(row)
            self.nested[row] = True
        circles_changed = False
        for facts in (_root_of(host), *host.children):
            member, claims = self.forest.put(facts, host.look)
            left = self.forest.join(tree, member)
            if left is not None:
                self._summarise(left)
            self.foresight.settle(member.id, claims)
            circles_changed |= self.sharing.put(member)
        there = {host.provider_id, *(child.provider_id for child in host.children)}
        for provider_id in [one for one, member in tree.members.items() if one not in there]:
            if tree.members[provider_id].look <= host.look:
                circles_changed |= self._forget(provider_id)
        self._marks[row] = tree.members[host.provider_id].marks
        self._summarise(tree)
        if circles_changed:
            self._assign_all()

    def _fell(self, row: int) -> None:
        """The host is not a tree any more."""
        tree = self.forest.trees.pop(self._providers[row])
        self.nested[row] = False
        self._set_partial(row, self.trait_sets[row], frozenset())
        circles = [self._forget(provider_id) for provider_id in list(tree.members)]
        for stock in self._stocks.values():
            stock.foreseen[row] = 0
        if any(circles):
            self._assign_all()

    def _drop_member(self, provider_id: int) -> None:
        member = self.forest.members.get(provider_id)
        if member is None:
            return
        circles_changed = self._forget(provider_id)
        if member.tree is not None:
            self._summarise(member.tree)
        if circles_changed:
            self._assign_all()

    def _forget(self, provider_id: int) -> bool:
        """Whether circles have to be drawn anew."""
        self.foresight.drop(provider_id)
        self.forest.remove(provider_id)
        return self.sharing.drop(provider_id)

    def _summarise(self, tree: Tree) -> None:
        """Write a tree's columns."""
        traits = tree.traits
        self._set_partial(tree.row, self.trait_sets[tree.row], frozenset())
        self._set_traits(tree.row, traits)
        self._set_partial(tree.row, frozenset(), traits - tree.common_traits)
        self._set_provider_aggregates(tree.row, tree.aggregates, tree.members)
        self._have_stocks(tree.classes)
        for name, stock in self._stocks.items():
            stock.set_summary(tree.row, tree.summary(name))

    def _set_partial(self, row: int, before: frozenset[str], traits: frozenset[str]) -> None:
        """Traits that some, but not all providers of a tree have."""
        for trait in before & self._partial.keys():
            self._partial[trait][row] = False
        for trait in traits:
            if trait not in self._partial:
                self._partial[trait] = self._nowhere()
            self._partial[trait][row] = True

    def _set_provider_aggregates(self, row: int, aggregates: frozenset[str], own: Collection[int] = ()) -> None:
        self.provider_aggregates[row] = aggregates
        self.sharing.assign(row, aggregates, own)

    def _assign_all(self) -> None:
        for provider_id, row in self._rows.items():
            tree = self.forest.trees.get(provider_id)
            self.sharing.assign(row, self.provider_aggregates[row], () if tree is None else tree.members)

    def _foresee(self, provider_id: int, amounts: Mapping[str, int], sign: int) -> None:
        """What is proposed begins or ends to count."""
        member = self.forest.members.get(provider_id)
        if member is not None:
            member.foresee(amounts, sign)
            self._touch(provider_id)
            return
        row = self._rows[provider_id]
        for name, amount in amounts.items():
            if name in self._stocks:
                self._stocks[name].foresee(row, sign * amount)

    def _touch(self, provider_id: int) -> None:
        """The room of a provider has changed, and so has that of whoever reaches it."""
        member = self.forest.members[provider_id]
        if member.tree is not None:
            for name in member.facts.inventory:
                self._stocks[name].set_summary(member.tree.row, member.tree.summary(name))
        if provider_id in self.sharing:
            self.sharing.touch(provider_id)

    def _zone(self, name: str) -> int:
        number = self._zone_ids.get(name)
        if number is None:
            number = self._zone_ids[name] = len(self.zone_names)
            self.zone_names.append(name)
        return number


def _root_of(host: HostFacts) -> MemberFacts:
    return MemberFacts(
        host.provider_id,
        host.uuid,
        None,
        host.uuid,
        host.inventory,
        host.used,
        host.traits,
        host.provider_aggregates,
        host.marks,
    )


def _remove(index: dict[Any, set[int]], key: Any, row: int) -> None:
    rows = index[key]
    rows.discard(row)
    if not rows:
        del index[key]
