"""The scheduler's picture of all hosts, in columns: one array per property, one place in it per hypervisor.

This is what filters and weighers read. `snapshot` is how the feed fills it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kilonova.placement.candidates import model
from kilonova.scheduler.aggregates import Aggregates
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.loads import Loads
from kilonova.scheduler.machines import Machine, Machines
from kilonova.scheduler.sharing import Pooled, Sharing
from kilonova.scheduler.stock import Integers, Numbers, Stock
from kilonova.scheduler.trees import Forest

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts

Mask = npt.NDArray[np.bool_]

STEP = 256


class Host(NamedTuple):
    """One host, for the words of a diagnosis."""

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
    def machine(self) -> Machine:
        return self.hosts.machines.of(self.row)

    @property
    def address(self) -> str:
        return self.hosts.machines.addresses[self.row]

    @property
    def aggregates(self) -> list[Mapping[str, str]]:
        """The metadata of its aggregates."""
        return self.hosts.aggregates.of(self.row)

    @property
    def disabled_reason(self) -> str | None:
        return self.hosts.disabled_reasons[self.row]


class Columns:
    """One place in every column for each hypervisor. Only rows in `everywhere` are hosts."""

    def __init__(self, default_zone: str = "nova", settings: SchedulerConfig | None = None) -> None:
        self.settings = settings or SchedulerConfig()
        self.everywhere: Mask = np.zeros(STEP, np.bool_)
        self.enabled: Mask = np.zeros(STEP, np.bool_)
        self.up: Mask = np.zeros(STEP, np.bool_)
        self.forced_down: Mask = np.zeros(STEP, np.bool_)
        self.zone: Integers = np.zeros(STEP, np.int64)
        self.zone_names = [default_zone]
        self.names: list[str] = []
        self.hypervisor_hostnames: list[str] = []
        self.uuids: list[str] = []
        self.disabled_reasons: list[str | None] = []
        self.trait_sets: list[frozenset[str]] = []
        self._providers: list[int] = []
        self._zone_ids = {default_zone: 0}
        self._stocks: dict[str, Stock] = {}
        self._traits: dict[str, Mask] = {}
        self._rows: dict[int, int] = {}
        self._rows_by_uuid: dict[str, int] = {}
        self._rows_by_host: dict[str, set[int]] = {}
        self.nested: Mask = np.zeros(STEP, np.bool_)
        """Hosts of which more than their own provider has to be looked at; their columns are those of a tree."""
        self.provider_aggregates: list[frozenset[str]] = []
        """The aggregates of any provider of the host."""
        self.sharing = Sharing(STEP)
        self.forest = Forest()
        self._partial: dict[str, Mask] = {}
        self._pooled: dict[str, tuple[tuple[int, int], Pooled]] = {}
        self.aggregates = Aggregates(STEP)
        self.machines = Machines(STEP)
        self.loads = Loads(STEP)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        """The length of every column; more than there are hosts."""
        return len(self.everywhere)

    def stock(self, resource_class: str) -> Stock | Pooled:
        """The columns of a class; all zero if no host has it.

        Of a host that is several providers, or that others share with, `free` is the sum and `room` the most that any
        one of them can give.
        """
        found = self._stocks.get(resource_class)
        if found is None:
            return Stock(self.size)
        return self._with_shared(resource_class, found) if self.sharing else found

    def has_trait(self, trait: str) -> Mask:
        """Where any provider of a host, or any that shares with it, has the trait."""
        found = self._traits.get(trait)
        shared = self.sharing.bears(trait) if self.sharing else None
        if found is None:
            return self._nowhere() if shared is None else shared
        return found if shared is None else found | shared

    def is_all(self, trait: str) -> Mask:
        """Where no provider is without the trait; a host that is one provider either has it or has it not."""
        found = self._traits.get(trait)
        if found is None:
            return self._nowhere()
        partial = self._partial.get(trait)
        if partial is not None:
            found = found & ~partial
        return found & (self.sharing.circle == 0) if self.sharing else found

    @property
    def simple(self) -> bool:
        """Whether every host is one provider, and nobody shares."""
        return not self.forest.members

    def is_plain(self, row: int) -> bool:
        """Whether a host is one provider that nobody shares with, so that its columns say everything."""
        return not self.nested[row] and not self.sharing.circle[row]

    def reach(self, row: int, classes: Iterable[str]) -> tuple[list[model.Provider], list[model.Provider]]:
        """The providers of a host, with what they have of these classes, and those that share with it."""
        tree = self.forest.trees.get(self._providers[row])
        own = [self._provider(row, classes)] if tree is None else tree.providers()
        return own, [member.provider for member in self.sharing.of(row)]

    def _with_shared(self, resource_class: str, own: Stock) -> Stock | Pooled:
        key = (own.version, self.sharing.version)
        known = self._pooled.get(resource_class)
        if known is not None and known[0] == key:
            return known[1]
        offers = self.sharing.offer(resource_class)
        if offers is None:
            return own
        pooled = Pooled(own, self.sharing.circle, offers)
        self._pooled[resource_class] = key, pooled
        return pooled

    def _provider(self, row: int, classes: Iterable[str]) -> model.Provider:
        """A host that is one provider, from its columns."""
        uuid = self.uuids[row]
        stocks = {
            name: model.Stock(
                float(stock.limit[row]),
                int(stock.used[row] + stock.foreseen[row]),
                int(stock.min_unit[row]),
                int(stock.max_unit[row]),
                int(stock.step_size[row]),
            )
            for name in classes
            if (stock := self._stocks.get(name)) is not None
        }
        return model.Provider(uuid, None, uuid, stocks, self.trait_sets[row], self.provider_aggregates[row])

    def zone_id(self, name: str) -> int:
        """The number of a zone in the column; that of no host, if none was ever in it."""
        return self._zone_ids.get(name, -1)

    def named(self, hosts: Iterable[str]) -> Mask:
        """Every hypervisor of these hosts."""
        mask = self._nowhere()
        for host in hosts:
            mask[list(self._rows_by_host.get(host, ()))] = True
        return mask

    def spread(self, numbers: Mapping[str, int]) -> Numbers:
        """A column of what few hosts have: a number by the host's name, zero for the others."""
        column = np.zeros(self.size)
        for host, number in numbers.items():
            column[list(self._rows_by_host.get(host, ()))] = number
        return column

    def called(self, hypervisor_hostname: str) -> Mask:
        mask = self._nowhere()
        mask[[row for row, name in enumerate(self.hypervisor_hostnames) if name == hypervisor_hostname]] = True
        return mask

    def hypervisor(self, uuid: str) -> Mask:
        mask = self._nowhere()
        if uuid in self._rows_by_uuid:
            mask[self._rows_by_uuid[uuid]] = True
        return mask

    def _nowhere(self) -> Mask:
        return np.zeros(self.size, np.bool_)
