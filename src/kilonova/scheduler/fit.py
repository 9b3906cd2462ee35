"""Capacity planning: how many more servers of a request fit, where, and what runs out first.

Hosts with a single provider are counted by arithmetic, all at once. Other hosts are filled one after the other by the
search that also places servers, because they compete for sharing providers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from kilonova.placement.candidates.model import InventoryUsage, Provider, ResourceRequest
from kilonova.scheduler.allocations import Allocations, best_allocations
from kilonova.scheduler.arrays import Integers
from kilonova.scheduler.explain import Diagnosis, FilterResult, Free, describe_request, free_amounts, resource_classes
from kilonova.scheduler.plan import ARRANGEMENT, Planner
from kilonova.scheduler.request import Request
from kilonova.scheduler.snapshot import Hosts

# More than any host can take: a host that reaches its cap was limited by a filter.
_UNLIMITED = 2**62


class HostFit(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    hypervisor_hostname: str
    zone: str
    servers: int
    """How many servers the host can take if no other host takes any."""
    runs_out: str
    """The resource class that is too scarce for one more, or the filter that rejects it."""
    shared: bool
    """Whether it allocates from sharing providers."""
    free: Free


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    servers: int
    """How many fit in total."""
    zones: dict[str, int]
    """How many fit in each zone alone. The sum may exceed `servers` if zones share a provider."""
    runs_out: dict[str, int]
    """What runs out first on how many hosts, the most frequent first."""
    hosts: int
    """How many hosts can take at least one."""
    best: tuple[HostFit, ...]
    """The hosts that can take most."""
    diagnosis: Diagnosis
    """The diagnosis for one server."""


def fit(planner: Planner, hosts: Hosts, request: Request, max_hosts: int = 100) -> Fit:
    with hosts.proposals.suspended():
        return _Counter(planner, hosts, request).result(max_hosts)


class _Filled(msgspec.Struct, frozen=True):
    """The result of filling providers with as many servers as possible; `sharing` with their usage afterwards."""

    servers: int
    runs_out: str
    sharing: tuple[Provider, ...]


class _Counter:
    def __init__(self, planner: Planner, hosts: Hosts, request: Request) -> None:
        self.planner = planner
        self.hosts = hosts
        self.request = request
        self.resource_request = request.resource_request
        self.classes = resource_classes(request)
        self.rows, self.results = planner.passing_rows(request, hosts)
        self.servers: Integers = np.zeros(hosts.size, np.int64)
        self.caps: Integers = np.full(hosts.size, _UNLIMITED, np.int64)
        self.capped_by: dict[int, str] = {}
        self.runs_out: dict[int, str] = {}
        self._known: dict[Any, _Filled] = {}
        for name, room in planner.limits:
            self._cap(name, room(hosts).astype(np.int64))
        self.simple_rows, self.searched_rows = self._classify()
        self._count_simple()
        for row in self.searched_rows.tolist():
            self._count_searched(row)

    def _cap(self, name: str, room: Integers) -> None:
        for row in np.flatnonzero(room < self.caps).tolist():
            self.capped_by[row] = name
        self.caps = np.minimum(self.caps, np.maximum(room, 0))

    def _classify(self) -> tuple[Integers, Integers]:
        """The rows that arithmetic can count, and the rows that need the search."""
        if self.request.groups or not self.request.amounts:
            return self.rows[:0], self.rows
        other = (self.hosts.nested | (self.hosts.sharing.provider_set > 0))[self.rows]
        return self.rows[~other], self.rows[other]

    def _count_simple(self) -> None:
        rows = self.simple_rows
        if not len(rows):
            return
        amounts = self.request.amounts
        room = np.stack([self.hosts.inventory(name).free[rows] // amount for name, amount in amounts.items()])
        first = room.argmin(axis=0)
        self.servers[rows] = np.minimum(room.min(axis=0).astype(np.int64), self.caps[rows])
        names = list(amounts)
        for row, place in zip(rows.tolist(), first.tolist(), strict=True):
            self.runs_out[row] = names[place]
        for row in rows[self.servers[rows] == self.caps[rows]].tolist():
            self.runs_out[row] = self.capped_by[row]

    def _count_searched(self, row: int) -> None:
        """Count a host as if no other host used the sharing providers."""
        filled = self._fill_host(row, tuple(self.hosts.providers_of(row, self.classes)[1]))
        self.servers[row] = filled.servers
        self.runs_out[row] = filled.runs_out

    def _fill_host(self, row: int, sharing: tuple[Provider, ...]) -> _Filled:
        """Fill a host, or reuse the result of an equal host in the same state."""
        tree, _ = self.hosts.providers_of(row, self.classes)
        cap = int(self.caps[row])
        key = (cap, tuple(_equivalence_key(one, tree) for one in tree), tuple(_identity_key(one) for one in sharing))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._fill(tree, sharing, cap, self.capped_by.get(row, ""))
        return found

    def _fill(self, tree: list[Provider], sharing: tuple[Provider, ...], cap: int, capped_by: str) -> _Filled:
        number, shared = 0, list(sharing)
        while number < cap:
            best = best_allocations(self.resource_request, self.classes, tree, shared)
            if best is None or not best.allocations:
                return _Filled(number, _scarce_resource(self.resource_request, [*tree, *shared]), tuple(shared))
            taken = best.allocations
            times = min(_max_repeats([*tree, *shared], taken), cap - number)
            tree = [_reduced(provider, taken, times) for provider in tree]
            shared = [_reduced(provider, taken, times) for provider in shared]
            number += times
        return _Filled(number, capped_by, tuple(shared))

    def count_together(self, rows: Sequence[int]) -> int:
        """How many fit on these hosts in total, with their competition for sharing providers."""
        total = 0
        left: dict[str, Provider] = {}
        for row in rows:
            _, sharing = self.hosts.providers_of(row, self.classes)
            filled = self._fill_host(row, tuple(left.get(one.uuid, one) for one in sharing))
            total += filled.servers
            left |= {one.uuid: one for one in filled.sharing}
        return total

    def result(self, max_hosts: int) -> Fit:
        able = self.rows[self.servers[self.rows] > 0]
        zones = self.hosts.zone[able]
        per_zone = {
            self.hosts.zone_names[number]: self._count_rows(able[zones == number])
            for number in np.unique(zones).tolist()
        }
        best_first = able[np.argsort(-self.servers[able], kind="stable")][:max_hosts]
        runs_out = Counter(self.runs_out[row] for row in able.tolist())
        return Fit(
            servers=self._count_rows(able),
            zones=dict(sorted(per_zone.items(), key=lambda item: -item[1])),
            runs_out=dict(runs_out.most_common()),
            hosts=len(able),
            best=tuple(self._host_fits(best_first)),
            diagnosis=Diagnosis(len(self.hosts), self._results(), asked=describe_request(self.request)),
        )

    def _results(self) -> tuple[FilterResult, ...]:
        """The results of the filters and, for hosts that pass them all, of the search for allocations."""
        failed = self.searched_rows[self.servers[self.searched_rows] == 0].tolist()
        if not failed:
            return self.results
        return (*self.results, self.planner.unallocated(self.request, self.hosts, failed, len(self.rows)))

    def _count_rows(self, rows: Integers) -> int:
        shared = self.hosts.sharing.provider_set[rows] > 0
        return int(self.servers[rows[~shared]].sum()) + self.count_together(rows[shared].tolist())

    def _host_fits(self, rows: Integers) -> Iterator[HostFit]:
        for row, free in zip(rows.tolist(), free_amounts(self.hosts, rows, self.classes), strict=True):
            host = self.hosts.at(row)
            yield HostFit(
                host=host.name,
                hypervisor_hostname=host.hypervisor_hostname,
                zone=host.zone,
                servers=int(self.servers[row]),
                runs_out=self.runs_out[row],
                shared=bool(self.hosts.sharing.provider_set[row]),
                free=free,
            )


def _equivalence_key(provider: Provider, tree: Sequence[Provider]) -> Any:
    """Equal for providers that can replace each other."""
    parent = next((place for place, one in enumerate(tree) if one.uuid == provider.parent), -1)
    return parent, tuple(provider.inventories.items()), provider.traits, provider.aggregates


def _identity_key(provider: Provider) -> Any:
    return provider.uuid, tuple(provider.inventories.items())


def _max_repeats(providers: Sequence[Provider], taken: Allocations) -> int:
    """How often the same allocations fit."""
    inventories = {provider.uuid: provider.inventories for provider in providers}
    return min(
        int(inventories[uuid][name].capacity - inventories[uuid][name].used) // amount
        for uuid, amounts in taken.items()
        for name, amount in amounts.items()
    )


def _reduced(provider: Provider, taken: Allocations, times: int) -> Provider:
    amounts = taken.get(provider.uuid)
    if not amounts:
        return provider
    inventories = {name: _used(usage, times * amounts.get(name, 0)) for name, usage in provider.inventories.items()}
    return msgspec.structs.replace(provider, inventories=inventories)


def _used(usage: InventoryUsage, amount: int) -> InventoryUsage:
    return msgspec.structs.replace(usage, used=usage.used + amount) if amount else usage


def _scarce_resource(request: ResourceRequest, providers: Sequence[Provider]) -> str:
    """The resource class of which no provider has enough for a group, or all providers have too little for all groups.

    `ARRANGEMENT` if there is enough of every class, but not in the right providers.
    """
    total: Counter[str] = Counter()
    for group in request.groups.values():
        for name, amount in group.resources.items():
            total[name] += amount
            if not any(name in one.inventories and one.inventories[name].can_allocate(amount) for one in providers):
                return name
    for name, amount in total.items():
        usages = [one.inventories[name] for one in providers if name in one.inventories]
        if sum(max(0, int(usage.capacity) - usage.used) for usage in usages) < amount:
            return name
    return ARRANGEMENT
