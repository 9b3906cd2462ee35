"""All hosts in columns: one array per property, one row per hypervisor. Filters and weighers read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kilonova.placement.candidates import model
from kilonova.scheduler.aggregates import Aggregates
from kilonova.scheduler.arrays import Integers, Mask, Numbers
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.host_load import HostLoad
from kilonova.scheduler.hypervisor_columns import HypervisorKind, Hypervisors
from kilonova.scheduler.inventory import InventoryColumns
from kilonova.scheduler.provider_trees import TrackedProviders
from kilonova.scheduler.sharing_providers import CombinedInventory, SharingProviders

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts

MIN_GROWTH_ROWS = 256


class Host(NamedTuple):
    """One row, for the texts of a diagnosis."""

    hosts: Hosts
    row: int

    @property
    def name(self) -> str:
        return self.hosts.names[self.row]

    @property
    def hypervisor_hostname(self) -> str:
        return self.hosts.hypervisor_hostnames[self.row]

    @property
    def uuid(self) -> str:
        return self.hosts.uuids[self.row]

    @property
    def zone(self) -> str:
        return self.hosts.zone_names[int(self.hosts.zone[self.row])]

    @property
    def traits(self) -> frozenset[str]:
        return self.hosts.trait_sets[self.row]

    @property
    def hypervisor_kind(self) -> HypervisorKind:
        return self.hosts.hypervisors.kind_at(self.row)

    @property
    def address(self) -> str:
        return self.hosts.hypervisors.addresses[self.row]

    @property
    def aggregates(self) -> list[Mapping[str, str]]:
        """The metadata of its aggregates."""
        return self.hosts.aggregates.metadata_of_row(self.row)

    @property
    def disabled_reason(self) -> str | None:
        return self.hosts.disabled_reasons[self.row]


class HostColumns:
    """Rows outside `everywhere` are vacant."""

    def __init__(self, default_zone: str = "nova", settings: SchedulerConfig | None = None) -> None:
        self.settings = settings or SchedulerConfig()
        self.everywhere: Mask = np.zeros(MIN_GROWTH_ROWS, np.bool_)
        self.enabled: Mask = np.zeros(MIN_GROWTH_ROWS, np.bool_)
        self.up: Mask = np.zeros(MIN_GROWTH_ROWS, np.bool_)
        self.forced_down: Mask = np.zeros(MIN_GROWTH_ROWS, np.bool_)
        self.zone: Integers = np.zeros(MIN_GROWTH_ROWS, np.int64)
        self.zone_names = [default_zone]
        self.names: list[str] = []
        self.hypervisor_hostnames: list[str] = []
        self.uuids: list[str] = []
        self.disabled_reasons: list[str | None] = []
        self.trait_sets: list[frozenset[str]] = []
        self._providers: list[int] = []
        self._zone_ids = {default_zone: 0}
        self._inventories: dict[str, InventoryColumns] = {}
        self._traits: dict[str, Mask] = {}
        self._rows: dict[int, int] = {}
        self._rows_by_uuid: dict[str, int] = {}
        self._rows_by_host: dict[str, set[int]] = {}
        self.nested: Mask = np.zeros(MIN_GROWTH_ROWS, np.bool_)
        """Hosts with a provider tree; their columns summarize it."""
        self.provider_aggregates: list[frozenset[str]] = []
        """The aggregates of all providers of the host."""
        self.sharing = SharingProviders(MIN_GROWTH_ROWS)
        self.tracked = TrackedProviders()
        self._partial_traits: dict[str, Mask] = {}
        self._combined: dict[str, tuple[tuple[int, int], CombinedInventory]] = {}
        self.aggregates = Aggregates(MIN_GROWTH_ROWS)
        self.hypervisors = Hypervisors(MIN_GROWTH_ROWS)
        self.loads = HostLoad(MIN_GROWTH_ROWS)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        """The length of every column, vacant rows included."""
        return len(self.everywhere)

    def inventory(self, resource_class: str) -> InventoryColumns | CombinedInventory:
        """The columns of a resource class; all zero if no host has it.

        For a host with several providers or with sharing providers, `free` is the sum over them and `max_allocation`
        the most that any single one can allocate.
        """
        found = self._inventories.get(resource_class)
        if found is None:
            return InventoryColumns(self.size)
        return self._with_shared(resource_class, found) if self.sharing else found

    @property
    def machines(self) -> Hypervisors:
        """The former name of `hypervisors`, for filters of other packages. So is `stock` of `inventory`."""
        return self.hypervisors

    stock = inventory

    def has_trait(self, trait: str) -> Mask:
        """Hosts of which any provider, or any provider that shares with them, has the trait."""
        found = self._traits.get(trait)
        shared = self.sharing.has_trait(trait) if self.sharing else None
        if found is None:
            return self._empty_mask() if shared is None else shared
        return found if shared is None else found | shared

    def all_providers_have_trait(self, trait: str) -> Mask:
        """Hosts without any provider that lacks the trait."""
        found = self._traits.get(trait)
        if found is None:
            return self._empty_mask()
        partial = self._partial_traits.get(trait)
        if partial is not None:
            found = found & ~partial
        return found & (self.sharing.provider_set == 0) if self.sharing else found

    @property
    def all_single_provider(self) -> bool:
        """Whether every host has one provider and there are no sharing providers."""
        return not self.tracked.by_id

    def has_single_provider(self, row: int) -> bool:
        """Whether a host has one provider and reaches no sharing provider: its columns describe it completely."""
        return not self.nested[row] and not self.sharing.provider_set[row]

    def providers_of(self, row: int, classes: Iterable[str]) -> tuple[list[model.Provider], list[model.Provider]]:
        """The providers of a host, with at least these resource classes, and the providers that share with it."""
        tree = self.tracked.trees.get(self._providers[row])
        own = [self._provider(row, classes)] if tree is None else tree.providers()
        return own, [one.provider for one in self.sharing.reached_by(row)]

    def _with_shared(self, resource_class: str, own: InventoryColumns) -> InventoryColumns | CombinedInventory:
        key = (own.version, self.sharing.version)
        known = self._combined.get(resource_class)
        if known is not None and known[0] == key:
            return known[1]
        summaries = self.sharing.summaries(resource_class)
        if summaries is None:
            return own
        combined = CombinedInventory(own, self.sharing.provider_set, summaries)
        self._combined[resource_class] = key, combined
        return combined

    def _provider(self, row: int, classes: Iterable[str]) -> model.Provider:
        """The provider of a host that has only one, from the columns."""
        uuid = self.uuids[row]
        inventories = {
            name: model.InventoryUsage(
                float(columns.capacity[row]),
                int(columns.used[row] + columns.proposed[row]),
                int(columns.min_unit[row]),
                int(columns.max_unit[row]),
                int(columns.step_size[row]),
            )
            for name in classes
            if (columns := self._inventories.get(name)) is not None
        }
        return model.Provider(uuid, None, uuid, inventories, self.trait_sets[row], self.provider_aggregates[row])

    def zone_id(self, name: str) -> int:
        """The number of a zone in the column `zone`; -1 if no host was ever in it."""
        return self._zone_ids.get(name, -1)

    def named(self, hosts: Iterable[str]) -> Mask:
        """All hypervisors of these hosts."""
        mask = self._empty_mask()
        for host in hosts:
            mask[list(self._rows_by_host.get(host, ()))] = True
        return mask

    def column_by_host(self, numbers: Mapping[str, int]) -> Numbers:
        """A column from numbers by host name; zero for all other hosts."""
        column = np.zeros(self.size)
        for host, number in numbers.items():
            column[list(self._rows_by_host.get(host, ()))] = number
        return column

    def with_hypervisor_hostname(self, hypervisor_hostname: str) -> Mask:
        mask = self._empty_mask()
        mask[[row for row, name in enumerate(self.hypervisor_hostnames) if name == hypervisor_hostname]] = True
        return mask

    def with_hypervisor_uuid(self, uuid: str) -> Mask:
        mask = self._empty_mask()
        if uuid in self._rows_by_uuid:
            mask[self._rows_by_uuid[uuid]] = True
        return mask

    def _empty_mask(self) -> Mask:
        return np.zeros(self.size, np.bool_)
