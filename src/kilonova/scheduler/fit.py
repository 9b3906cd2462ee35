"""How many more servers of a kind would fit, where, and what runs out first.

A host that is one provider is counted by arithmetic, all such hosts at once. One that is several providers, or that
others share with, is filled by the same search that places servers; what it takes from a shared provider is gone for
those after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from kilonova.placement.candidates.model import Ask, Provider, Stock
from kilonova.scheduler.arranging import Allocations, best
from kilonova.scheduler.explain import Diagnosis, FilterResult, Free, asked_of, classes_of, free_of
from kilonova.scheduler.plan import ARRANGEMENT, Planner
from kilonova.scheduler.request import Request
from kilonova.scheduler.snapshot import Hosts
from kilonova.scheduler.stock import Integers

# More than any host has room for, so that whoever reaches it was stopped by a filter.
_UNLIMITED = 2**62


class HostFit(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    hypervisor_hostname: str
    zone: str
    servers: int
    """How many the host can take if no other host takes any."""
    runs_out: str
    """The class that is short for one more, or the filter that forbids it."""
    shared: bool
    """Whether it would use what others can use as well."""
    free: Free


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    servers: int
    """How many fit at once."""
    zones: dict[str, int]
    """The same for each zone by itself; zones that share a provider may add up to more than there is."""
    runs_out: dict[str, int]
    """What runs out first, and on how many hosts, the most frequent first."""
    hosts: int
    """How many hosts can take any."""
    best: tuple[HostFit, ...]
    """Those that can take most."""
    diagnosis: Diagnosis
    """What became of all hosts when asked for one server."""


def fit(planner: Planner, hosts: Hosts, request: Request, shown: int = 100) -> Fit:
    with hosts.foresight.suspended():
        return _Count(planner, hosts, request).result(shown)


class _Filled(msgspec.Struct, frozen=True):
    """What became of providers that took as many servers as they could."""

    servers: int
    runs_out: str
    sharing: tuple[Provider, ...]


class _Count:
    def __init__(self, planner: Planner, hosts: Hosts, request: Request) -> None:
        self.planner = planner
        self.hosts = hosts
        self.request = request
        self.ask = request.ask
        self.classes = classes_of(request)
        self.rows, self.results = planner.passing(request, hosts)
        self.servers: Integers = np.zeros(hosts.size, np.int64)
        self.caps: Integers = np.full(hosts.size, _UNLIMITED, np.int64)
        self.capped_by: dict[int, str] = {}
        self.runs_out: dict[int, str] = {}
        self._known: dict[Any, _Filled] = {}
        for name, room in planner.limits:
            self._cap(name, room(hosts).astype(np.int64))
        self.plain, self.others = self._sorted()
        self._count_plain()
        for row in self.others.tolist():
            self._count_other(row)

    def _cap(self, name: str, room: Integers) -> None:
        for row in np.flatnonzero(room < self.caps).tolist():
            self.capped_by[row] = name
        self.caps = np.minimum(self.caps, np.maximum(room, 0))

    def _sorted(self) -> tuple[Integers, Integers]:
        """Hosts that are one provider with one group of resources, and the others."""
        if self.request.groups or not self.request.amounts:
            return self.rows[:0], self.rows
        other = (self.hosts.nested | (self.hosts.sharing.circle > 0))[self.rows]
        return self.rows[~other], self.rows[other]

    def _count_plain(self) -> None:
        rows = self.plain
        if not len(rows):
            return
        amounts = self.request.amounts
        room = np.stack([self.hosts.stock(name).free[rows] // amount for name, amount in amounts.items()])
        first = room.argmin(axis=0)
        self.servers[rows] = np.minimum(room.min(axis=0).astype(np.int64), self.caps[rows])
        names = list(amounts)
        for row, place in zip(rows.tolist(), first.tolist(), strict=True):
            self.runs_out[row] = names[place]
        for row in rows[self.servers[rows] == self.caps[rows]].tolist():
            self.runs_out[row] = self.capped_by[row]

    def _count_other(self, row: int) -> None:
        """By itself, as if it alone used what is shared."""
        filled = self._filled(row, tuple(self.hosts.reach(row, self.classes)[1]))
        self.servers[row] = filled.servers
        self.runs_out[row] = filled.runs_out

    def _filled(self, row: int, sharing: tuple[Provider, ...]) -> _Filled:
        """Hosts of a kind in the same state are filled but once."""
        tree, _ = self.hosts.reach(row, self.classes)
        cap = int(self.caps[row])
        key = (cap, tuple(_kind(one, tree) for one in tree), tuple(_state(one) for one in sharing))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._fill(tree, sharing, cap, self.capped_by.get(row, ""))
        return found

    def _fill(self, tree: list[Provider], sharing: tuple[Provider, ...], cap: int, capped_by: str) -> _Filled:
        number, shared = 0, list(sharing)
        while number < cap:
            taken = best(self.ask, self.classes, tree, shared)
            if not taken:
                return _Filled(number, _short(self.ask, [*tree, *shared]), tuple(shared))
            times = min(_times([*tree, *shared], taken), cap - number)
            tree = [_less(provider, taken, times) for provider in tree]
            shared = [_less(provider, taken, times) for provider in shared]
            number += times
        return _Filled(number, capped_by, tuple(shared))

    def together(self, rows: Sequence[int]) -> int:
        """How many fit on these hosts at once: what one takes from a shared provider is gone for the next."""
        total = 0
        left: dict[str, Provider] = {}
        for row in rows:
            _, sharing = self.hosts.reach(row, self.classes)
            filled = self._filled(row, tuple(left.get(one.uuid, one) for one in sharing))
            total += filled.servers
            left |= {one.uuid: one for one in filled.sharing}
        return total

    def result(self, shown: int) -> Fit:
        able = self.rows[self.servers[self.rows] > 0]
        zones = self.hosts.zone[able]
        per_zone = {
            self.hosts.zone_names[number]: self._zone(able[zones == number]) for number in np.unique(zones).tolist()
        }
        best_first = able[np.argsort(-self.servers[able], kind="stable")][:shown]
        runs_out = Counter(self.runs_out[row] for row in able.tolist())
        return Fit(
            servers=self._zone(able),
            zones=dict(sorted(per_zone.items(), key=lambda item: -item[1])),
            runs_out=dict(runs_out.most_common()),
            hosts=len(able),
            best=tuple(self._hosts(best_first)),
            diagnosis=Diagnosis(len(self.hosts), self._results(), asked=asked_of(self.request)),
        )

    def _results(self) -> tuple[FilterResult, ...]:
        """What became of the hosts, those included that pass all filters and still cannot take one."""
        failed = self.others[self.servers[self.others] == 0].tolist()
        if not failed:
            return self.results
        return (*self.results, self.planner.unarranged(self.request, self.hosts, failed, len(self.rows)))

    def _zone(self, rows: Integers) -> int:
        shared = self.hosts.sharing.circle[rows] > 0
        return int(self.servers[rows[~shared]].sum()) + self.together(rows[shared].tolist())

    def _hosts(self, rows: Integers) -> Iterator[HostFit]:
        for row, free in zip(rows.tolist(), free_of(self.hosts, rows, self.classes), strict=True):
            host = self.hosts.at(row)
            yield HostFit(
                host=host.name,
                hypervisor_hostname=host.hypervisor_hostname,
                zone=host.zone,
                servers=int(self.servers[row]),
                runs_out=self.runs_out[row],
                shared=bool(self.hosts.sharing.circle[row]),
                free=free,
            )


def _kind(provider: Provider, tree: Sequence[Provider]) -> Any:
    """Whatever of a provider matters, but not which one it is."""
    parent = next((place for place, one in enumerate(tree) if one.uuid == provider.parent), -1)
    return parent, tuple(provider.stocks.items()), provider.traits, provider.aggregates


def _state(provider: Provider) -> Any:
    return provider.uuid, tuple(provider.stocks.items())


def _times(providers: Sequence[Provider], taken: Allocations) -> int:
    """How often the same can be taken."""
    stocks = {provider.uuid: provider.stocks for provider in providers}
    return min(
        int(stocks[uuid][name].capacity - stocks[uuid][name].used) // amount
        for uuid, amounts in taken.items()
        for name, amount in amounts.items()
    )


def _less(provider: Provider, taken: Allocations, times: int) -> Provider:
    amounts = taken.get(provider.uuid)
    if not amounts:
        return provider
    stocks = {name: _used(stock, times * amounts.get(name, 0)) for name, stock in provider.stocks.items()}
    return msgspec.structs.replace(provider, stocks=stocks)


def _used(stock: Stock, amount: int) -> Stock:
    return msgspec.structs.replace(stock, used=stock.used + amount) if amount else stock


def _short(ask: Ask, providers: Sequence[Provider]) -> str:
    """The class of which no provider has enough for a group, or all together for all groups; else it is not so simple.

    There may be enough of everything, but not where it would have to be.
    """
    total: Counter[str] = Counter()
    for group in ask.groups.values():
        for name, amount in group.resources.items():
            total[name] += amount
            if not any(name in one.stocks and one.stocks[name].gives(amount) for one in providers):
                return name
    for name, amount in total.items():
        stocks = [one.stocks[name] for one in providers if name in one.stocks]
        if sum(max(0, int(stock.capacity) - stock.used) for stock in stocks) < amount:
            return name
    return ARRANGEMENT
