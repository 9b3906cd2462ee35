"""The scheduler's picture of all hosts, in columns: one array per property, one place in it per hypervisor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from kilonova.placement.providers import Amounts
from kilonova.scheduler.aggregates import Aggregates
from kilonova.scheduler.config import SchedulerConfig
from kilonova.scheduler.loads import Loads
from kilonova.scheduler.machines import Machine, Machines
from kilonova.scheduler.stock import Foresight, Integers, Numbers, Stock, longer

Mask = npt.NDArray[np.bool_]

_STEP = 256


class Marks(NamedTuple):
    """How new a host's columns are; see the columns of the same names in the database."""

    change: int
    facts: int
    generation: int


_UNREAD = Marks(-1, -1, -1)


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


class Hosts:
    """The columns. Filters and weighers read them, the feed writes them. Only rows in `everywhere` are hosts."""

    def __init__(self, default_zone: str = "nova", settings: SchedulerConfig | None = None) -> None:
        self.settings = settings or SchedulerConfig()
        self.everywhere: Mask = np.zeros(_STEP, np.bool_)
        self.enabled: Mask = np.zeros(_STEP, np.bool_)
        self.up: Mask = np.zeros(_STEP, np.bool_)
        self.forced_down: Mask = np.zeros(_STEP, np.bool_)
        self.zone: Integers = np.zeros(_STEP, np.int64)
        self.zone_names = [default_zone]
        self.names: list[str] = []
        self.hypervisor_hostnames: list[str] = []
        self.uuids: list[str] = []
        self.disabled_reasons: list[str | None] = []
        self.trait_sets: list[frozenset[str]] = []
        self._providers: list[int] = []
        self._marks: list[Marks] = []
        self._services: list[int] = []
        self._zone_ids = {default_zone: 0}
        self._stocks: dict[str, Stock] = {}
        self._traits: dict[str, Mask] = {}
        self._rows: dict[int, int] = {}
        self._rows_by_uuid: dict[str, int] = {}
        self._rows_by_host: dict[str, set[int]] = {}
        self._rows_by_service: dict[int, set[int]] = {}
        self._vacant: list[int] = []
        self._silent: frozenset[int] = frozenset()
        self.foresight = Foresight(self._stocks)
        self.aggregates = Aggregates(_STEP)
        self.machines = Machines(_STEP)
        self.loads = Loads(_STEP)

    # What filters and weighers read

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        """The length of every column; more than there are hosts."""
        return len(self.everywhere)

    def at(self, row: int) -> Host:
        return Host(self, row)

    def stock(self, resource_class: str) -> Stock:
        """The columns of a class; all zero if no host has it."""
        found = self._stocks.get(resource_class)
        return found if found is not None else Stock(self.size)

    def has_trait(self, trait: str) -> Mask:
        found = self._traits.get(trait)
        return found if found is not None else self._nowhere()

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

    # What the feed reads and writes

    def providers(self) -> list[int]:
        return list(self._rows)

    def marks(self, provider_id: int) -> Marks | None:
        row = self._rows.get(provider_id)
        return None if row is None else self._marks[row]

    def row_of(self, uuid: str) -> int | None:
        return self._rows_by_uuid.get(uuid)

    def names_of(self, providers: Iterable[int]) -> list[str]:
        rows = map(self._rows.get, providers)
        return [self.names[row] for row in rows if row is not None]

    def provider_of(self, uuid: str) -> int | None:
        row = self._rows_by_uuid.get(uuid)
        return None if row is None else self._providers[row]

    def put(self, host: HostFacts) -> None:
        """Add or replace a host. What was read before something newer is ignored."""
        row = self._rows.get(host.provider_id)
        if row is None:
            row = self._new_row(host.provider_id)
        elif host.marks.change < self._marks[row].change:
            return
        self._set_identity(row, host)
        self._set_traits(row, host.traits)
        self.zone[row] = self._zone(host.zone)
        self.enabled[row] = not host.disabled
        self.disabled_reasons[row] = host.disabled_reason
        self.forced_down[row] = host.forced_down
        self.aggregates.assign(row, host.aggregates)
        self.machines.put(row, host.machine, host.address)
        self.up[row] = not host.forced_down and host.service_id not in self._silent
        for name in host.inventory:
            if name not in self._stocks:
                self._stocks[name] = Stock(self.size)
        for name, stock in self._stocks.items():
            stock.set_inventory(row, host.inventory.get(name))
        self._set_used(row, host.used, host.marks)

    def use(self, provider_id: int, used: Mapping[str, int], marks: Marks) -> None:
        """Replace the used amounts of a host whose other facts are as they were."""
        row = self._rows.get(provider_id)
        if row is not None and marks.change >= self._marks[row].change:
            self._set_used(row, used, marks)

    def drop(self, provider_id: int) -> None:
        row = self._rows.pop(provider_id, None)
        if row is None:
            return
        self.foresight.drop(row)
        self._unlink(row)
        self._set_traits(row, frozenset())
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
                self._grow(max(_STEP, row // 8))
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
            self.foresight.settle(row, marks.generation - before.generation)
        for name, stock in self._stocks.items():
            stock.set_used(row, used.get(name, 0))

    def _zone(self, name: str) -> int:
        number = self._zone_ids.get(name)
        if number is None:
            number = self._zone_ids[name] = len(self.zone_names)
            self.zone_names.append(name)
        return number


def _remove(index: dict[Any, set[int]], key: Any, row: int) -> None:
    rows = index[key]
    rows.discard(row)
    if not rows:
        del index[key]
