"""The snapshot of all hosts: `Hosts` writes what the loader has read into the columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from kilonova.placement.host_providers import SHARING_TRAIT
from kilonova.placement.reshape_plan import InventoryAmounts
from kilonova.scheduler.arrays import Mask, extended
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.host_columns import MIN_GROWTH_ROWS, Host, HostColumns
from kilonova.scheduler.hypervisor_columns import HypervisorKind
from kilonova.scheduler.inventory import InventoryColumns
from kilonova.scheduler.proposals import Proposals
from kilonova.scheduler.provider_trees import ProviderState, ProviderTree, ProviderVersion

__all__ = ["Host", "HostState", "Hosts", "Mask", "ProviderVersion", "RowVersions"]

_UNREAD = ProviderVersion(-1, -1, -1)


class RowVersions(NamedTuple):
    """The host in each row and the version of its provider."""

    uuids: list[str]
    versions: list[ProviderVersion]


class HostState(msgspec.Struct):
    """One hypervisor as it was read from the database."""

    provider_id: int
    uuid: str
    service_id: int
    host: str
    hypervisor_hostname: str
    zone: str
    disabled: bool
    disabled_reason: str | None
    forced_down: bool
    inventory: Mapping[str, InventoryAmounts]
    used: Mapping[str, int]
    traits: frozenset[str]
    version: ProviderVersion
    aggregates: frozenset[int] = frozenset()
    hypervisor_kind: HypervisorKind = HypervisorKind()
    address: str = ""
    provider_aggregates: frozenset[str] = frozenset()
    """The placement aggregates of its root provider."""
    children: tuple[ProviderState, ...] = ()
    """All providers below the root provider."""
    read_number: int = 0
    """Reads of the database are numbered; a higher number is a later read."""


class Hosts(HostColumns):
    """The columns, with the methods that update them."""

    def __init__(self, default_zone: str = "nova", settings: SchedulerConfig | None = None) -> None:
        super().__init__(default_zone, settings)
        self.proposals = Proposals(self._count_proposed)
        self._vacant: list[int] = []
        self._down_services: frozenset[int] = frozenset()
        self._versions: list[ProviderVersion] = []
        self._services: list[int] = []
        self._rows_by_service: dict[int, set[int]] = {}

    def at(self, row: int) -> Host:
        return Host(self, row)

    def provider_ids(self) -> set[int]:
        """All known providers: hosts, providers below them, and sharing providers."""
        return self._rows.keys() | self.tracked.by_id.keys()

    def facts_version(self, row: int) -> int:
        """`facts` of the host's provider: changes with everything but its usage."""
        return self._versions[row].facts

    def row_versions(self) -> RowVersions:
        return RowVersions(self.uuids.copy(), self._versions.copy())

    def is_unchanged(self, row: int, before: RowVersions) -> bool:
        """Whether the row still has the same host, and only its usage may have changed."""
        return self.uuids[row] == before.uuids[row] and self._versions[row].facts == before.versions[row].facts

    def version(self, provider_id: int) -> ProviderVersion | None:
        tracked = self.tracked.by_id.get(provider_id)
        if tracked is not None:
            return tracked.version
        row = self._rows.get(provider_id)
        return None if row is None else self._versions[row]

    def row_of(self, uuid: str) -> int | None:
        return self._rows_by_uuid.get(uuid)

    def host_names(self, providers: Iterable[int]) -> list[str]:
        """The hosts that these providers belong to."""
        return [self.names[row] for row in {self._row(provider_id) for provider_id in providers} if row is not None]

    def _row(self, provider_id: int) -> int | None:
        tracked = self.tracked.by_id.get(provider_id)
        tree = None if tracked is None else tracked.tree
        return self._rows.get(provider_id) if tree is None else tree.row

    def provider_id_of(self, uuid: str) -> int | None:
        row = self._rows_by_uuid.get(uuid)
        return self.tracked.id_of(uuid) if row is None else self._providers[row]

    def provider_ids_for(self, uuid: str) -> set[int]:
        """All providers that a host can allocate from: its own, and those that share with it."""
        row = self._rows_by_uuid.get(uuid)
        if row is None:
            return set()
        tree = self.tracked.trees.get(self._providers[row])
        own = {self._providers[row]} if tree is None else set(tree.members)
        return own.union(one.id for one in self.sharing.reached_by(row))

    def add_proposal(self, uuid: str, allocations: Mapping[str, Mapping[str, int]], until: float) -> None:
        """Count the allocations of a proposed host as used until they are claimed or expire."""
        host = self.provider_id_of(uuid)
        ids = {one: provider_id for one in allocations if (provider_id := self.provider_id_of(one)) is not None}
        if host is not None:
            self.proposals.add(host, {provider_id: allocations[one] for one, provider_id in ids.items()}, until)

    def count_allocations(self, allocations: Mapping[str, Mapping[str, int]], sign: int) -> None:
        """Count allocations as used (1), or stop counting them (-1)."""
        for uuid, amounts in allocations.items():
            provider_id = self.provider_id_of(uuid)
            if provider_id is not None:
                self._count_proposed(provider_id, amounts, sign)

    def discard_proposal(self, uuid: str) -> None:
        """End the oldest proposal of a host: its claim failed."""
        host = self.provider_id_of(uuid)
        if host is not None:
            self.proposals.discard(host, self.provider_ids_for(uuid))

    def put(self, host: HostState) -> None:
        """Add or replace a host, unless a newer version is known."""
        row = self._rows.get(host.provider_id)
        if row is None:
            row = self._new_row(host.provider_id)
        elif host.version.change < self._versions[row].change:
            return
        self._set_identity(row, host)
        self.zone[row] = self._zone(host.zone)
        self.enabled[row] = not host.disabled
        self.disabled_reasons[row] = host.disabled_reason
        self.forced_down[row] = host.forced_down
        self.aggregates.assign(row, host.aggregates)
        self.hypervisors.put(row, host.hypervisor_kind, host.address)
        self.up[row] = not host.forced_down and host.service_id not in self._down_services
        if host.children or SHARING_TRAIT in host.traits:
            self._set_tree(row, host)
            return
        if self.nested[row]:
            self._remove_tree(row)
        self._set_traits(row, host.traits)
        self._set_provider_aggregates(row, host.provider_aggregates)
        self._add_resource_classes(host.inventory)
        for name, columns in self._inventories.items():
            columns.set_inventory(row, host.inventory.get(name))
        self._set_row_used(row, host.used, host.version)

    def put_sharing_provider(self, state: ProviderState, read_number: int = 0) -> None:
        """Add or replace a sharing provider that is not part of a host."""
        provider, claims = self.tracked.put(state, read_number)
        if provider.tree is not None:
            tree, provider.tree = provider.tree, None
            del tree.members[provider.id]
            self._summarize(tree)
        self.proposals.end_oldest(provider.id, claims)
        self._add_resource_classes(state.inventory)
        if self.sharing.put(provider):
            self._assign_provider_sets()

    def set_used(self, provider_id: int, used: Mapping[str, int], version: ProviderVersion) -> None:
        """Replace the used amounts of a provider of which nothing else has changed."""
        tracked = self.tracked.by_id.get(provider_id)
        row = self._rows.get(provider_id)
        if tracked is not None:
            claims = tracked.set_used(used, version)
            if row is not None:
                self._versions[row] = tracked.version
            self.proposals.end_oldest(provider_id, claims)
            self._update_usage(provider_id)
        elif row is not None and version.change >= self._versions[row].change:
            self._set_row_used(row, used, version)

    def drop(self, provider_id: int) -> None:
        """Remove a host with all providers below it, or a single provider."""
        row = self._rows.get(provider_id)
        if row is None:
            self._drop_tracked(provider_id)
            return
        if self.nested[row]:
            self._remove_tree(row)
        self.proposals.drop(provider_id)
        del self._rows[provider_id]
        self._unlink(row)
        self._set_traits(row, frozenset())
        self._set_provider_aggregates(row, frozenset())
        self.aggregates.assign(row, frozenset())
        self.loads.servers[row] = 0
        self.hypervisor_hostnames[row] = ""
        self._versions[row] = _UNREAD
        self.everywhere[row] = False
        self._vacant.append(row)

    def set_server_counts(self, counts: Mapping[tuple[str, str], int], hosts: Iterable[str]) -> None:
        """Set how many servers each hypervisor of these hosts has; `counts` is by host and hypervisor."""
        for host in hosts:
            for row in self._rows_by_host.get(host, ()):
                self.loads.servers[row] = counts.get((host, self.hypervisor_hostnames[row]), 0)

    def set_down_services(self, services: Collection[int]) -> None:
        """Replace the set of services whose last heartbeat is too old."""
        down = frozenset(services)
        for service in down ^ self._down_services:
            for row in self._rows_by_service.get(service, ()):
                self.up[row] = not self.forced_down[row] and service not in down
        self._down_services = down

    def _new_row(self, provider_id: int) -> int:
        if self._vacant:
            row = self._vacant.pop()
        else:
            row = len(self.names)
            if row == self.size:
                self._grow(max(MIN_GROWTH_ROWS, row // 8))
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
            (self._versions, _UNREAD),
            (self._services, 0),
            (self.provider_aggregates, frozenset()),
        ]

    def _grow(self, by: int) -> None:
        self.everywhere = extended(self.everywhere, by)
        self.enabled = extended(self.enabled, by)
        self.up = extended(self.up, by)
        self.forced_down = extended(self.forced_down, by)
        self.zone = extended(self.zone, by)
        self.aggregates.grow(by)
        self.hypervisors.grow(by)
        self.loads.grow(by)
        self.nested = extended(self.nested, by)
        self.sharing.grow(by)
        for name, column in self._partial_traits.items():
            self._partial_traits[name] = extended(column, by)
        for columns in self._inventories.values():
            columns.grow(by)
        for name, column in self._traits.items():
            self._traits[name] = extended(column, by)

    def _set_identity(self, row: int, host: HostState) -> None:
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
                self._traits[trait] = self._empty_mask()
            self._traits[trait][row] = True
        self.trait_sets[row] = traits

    def _set_row_used(self, row: int, used: Mapping[str, int], version: ProviderVersion) -> None:
        before, self._versions[row] = self._versions[row], version
        if before is not _UNREAD:
            # A claim increments the generation. So this many proposals are probably the claims now seen.
            self.proposals.end_oldest(self._providers[row], version.generation - before.generation)
        for name, columns in self._inventories.items():
            columns.set_used(row, used.get(name, 0))

    def _add_resource_classes(self, classes: Iterable[str]) -> None:
        for name in classes:
            if name not in self._inventories:
                self._inventories[name] = InventoryColumns(self.size)

    # Provider trees and sharing providers

    def _set_tree(self, row: int, host: HostState) -> None:
        tree = self.tracked.trees.get(host.provider_id)
        if tree is None:
            self.proposals.drop(host.provider_id)  # from now on they count on the tracked provider, not on the row
            tree = self.tracked.trees[host.provider_id] = ProviderTree(row)
            self.nested[row] = True
        sets_changed = False
        for state in (_root_state(host), *host.children):
            provider, claims = self.tracked.put(state, host.read_number)
            left = self.tracked.join(tree, provider)
            if left is not None:
                self._summarize(left)
            self.proposals.end_oldest(provider.id, claims)
            sets_changed |= self.sharing.put(provider)
        found = {host.provider_id, *(child.provider_id for child in host.children)}
        for provider_id in [one for one in tree.members if one not in found]:
            if tree.members[provider_id].read_number <= host.read_number:
                sets_changed |= self._remove_tracked(provider_id)
        self._versions[row] = tree.members[host.provider_id].version
        self._summarize(tree)
        if sets_changed:
            self._assign_provider_sets()

    def _remove_tree(self, row: int) -> None:
        """Make a host with a provider tree one with a single provider."""
        tree = self.tracked.trees.pop(self._providers[row])
        self.nested[row] = False
        self._set_partial_traits(row, self.trait_sets[row], frozenset())
        sets_changed = [self._remove_tracked(provider_id) for provider_id in list(tree.members)]
        for columns in self._inventories.values():
            columns.proposed[row] = 0
        if any(sets_changed):
            self._assign_provider_sets()

    def _drop_tracked(self, provider_id: int) -> None:
        provider = self.tracked.by_id.get(provider_id)
        if provider is None:
            return
        sets_changed = self._remove_tracked(provider_id)
        if provider.tree is not None:
            self._summarize(provider.tree)
        if sets_changed:
            self._assign_provider_sets()

    def _remove_tracked(self, provider_id: int) -> bool:
        """Return whether all rows must be assigned to provider sets again."""
        self.proposals.drop(provider_id)
        self.tracked.remove(provider_id)
        return self.sharing.drop(provider_id)

    def _summarize(self, tree: ProviderTree) -> None:
        """Write a tree's row."""
        traits = tree.traits
        self._set_partial_traits(tree.row, self.trait_sets[tree.row], frozenset())
        self._set_traits(tree.row, traits)
        self._set_partial_traits(tree.row, frozenset(), traits - tree.common_traits)
        self._set_provider_aggregates(tree.row, tree.aggregates, tree.members)
        self._add_resource_classes(tree.resource_classes)
        for name, columns in self._inventories.items():
            columns.set_summary(tree.row, tree.summarize(name))

    def _set_partial_traits(self, row: int, before: frozenset[str], traits: frozenset[str]) -> None:
        """Set the traits that some, but not all providers of a tree have."""
        for trait in before & self._partial_traits.keys():
            self._partial_traits[trait][row] = False
        for trait in traits:
            if trait not in self._partial_traits:
                self._partial_traits[trait] = self._empty_mask()
            self._partial_traits[trait][row] = True

    def _set_provider_aggregates(self, row: int, aggregates: frozenset[str], own: Collection[int] = ()) -> None:
        self.provider_aggregates[row] = aggregates
        self.sharing.assign(row, aggregates, own)

    def _assign_provider_sets(self) -> None:
        for provider_id, row in self._rows.items():
            tree = self.tracked.trees.get(provider_id)
            self.sharing.assign(row, self.provider_aggregates[row], () if tree is None else tree.members)

    def _count_proposed(self, provider_id: int, amounts: Mapping[str, int], sign: int) -> None:
        tracked = self.tracked.by_id.get(provider_id)
        if tracked is not None:
            tracked.add_proposed(amounts, sign)
            self._update_usage(provider_id)
            return
        row = self._rows[provider_id]
        for name, amount in amounts.items():
            if name in self._inventories:
                self._inventories[name].add_proposed(row, sign * amount)

    def _update_usage(self, provider_id: int) -> None:
        """Update the columns after the usage of a tracked provider has changed."""
        provider = self.tracked.by_id[provider_id]
        if provider.tree is not None:
            for name in provider.state.inventory:
                self._inventories[name].set_summary(provider.tree.row, provider.tree.summarize(name))
        if provider_id in self.sharing:
            self.sharing.update_summaries(provider_id)

    def _zone(self, name: str) -> int:
        number = self._zone_ids.get(name)
        if number is None:
            number = self._zone_ids[name] = len(self.zone_names)
            self.zone_names.append(name)
        return number


def _root_state(host: HostState) -> ProviderState:
    return ProviderState(
        host.provider_id,
        host.uuid,
        None,
        host.uuid,
        host.inventory,
        host.used,
        host.traits,
        host.provider_aggregates,
        host.version,
    )


def _remove(index: dict[Any, set[int]], key: Any, row: int) -> None:
    rows = index[key]
    rows.discard(row)
    if not rows:
        del index[key]
