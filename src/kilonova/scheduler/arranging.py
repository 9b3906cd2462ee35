"""What a request takes from which provider of a host: the exact answer, where columns only say what is necessary."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import islice

from kilonova.placement.candidates.model import Ask, Provider
from kilonova.placement.candidates.search import arrangements
from kilonova.placement.candidates.shortcoming import shortcoming
from kilonova.scheduler.explain import classes_of
from kilonova.scheduler.filters.capacity import amount
from kilonova.scheduler.request import Request
from kilonova.scheduler.snapshot import Hosts

Allocations = dict[str, dict[str, int]]

# How many arrangements of a host are compared.
_COMPARED = 8


class Arranger:
    """One request on one host after the other."""

    def __init__(self, request: Request, hosts: Hosts) -> None:
        self._request = request
        self._hosts = hosts
        self._amounts = request.amounts
        self._simple = not request.groups

    @property
    def needless(self) -> bool:
        """Whether the columns decide for every host."""
        return self._simple and self._hosts.simple

    def on(self, row: int) -> Allocations | None:
        """What to claim, if anything will do."""
        if self._simple and self._hosts.is_plain(row):
            return self.whole(row)
        return best(self._ask, self._classes, *self._hosts.reach(row, self._classes))

    def whole(self, row: int) -> Allocations:
        """Everything from the host's own provider."""
        return {self._hosts.uuids[row]: self._amounts}

    def missing(self, row: int) -> str:
        """Why nothing will do on this host."""
        return shortcoming(self._ask, *self._hosts.reach(row, self._classes)) or "it would fit now"

    def words(self) -> str:
        """What was asked for: `2 VCPU, 512 MB memory, group 1: 1 VGPU`."""
        groups = [
            ("", self._amounts),
            *((f"group {name}: ", one.resources) for name, one in self._request.groups.items()),
        ]
        return ", ".join(
            prefix + ", ".join(amount(name, number) for name, number in resources.items())
            for prefix, resources in groups
        )

    @cached_property
    def _ask(self) -> Ask:
        return self._request.ask

    @cached_property
    def _classes(self) -> list[str]:
        return classes_of(self._request)


def best(ask: Ask, classes: Iterable[str], tree: list[Provider], sharing: list[Provider]) -> Allocations | None:
    """What to claim from a host's providers and those that share with it, if anything will do."""
    # Where little is left comes first, so that large rooms stay whole.
    found = arrangements(ask, _tightest_first(tree, classes), _tightest_first(sharing, classes))
    compared = [one.allocations for one in islice(found, _COMPARED)]
    if len(compared) < 2:
        return compared[0] if compared else None
    own = {provider.uuid for provider in tree}
    return min(compared, key=lambda one: (_borrowed(one, own), len(one)))


def _tightest_first(providers: list[Provider], classes: Iterable[str]) -> list[Provider]:
    return providers if len(providers) < 2 else sorted(providers, key=lambda one: _left(one, classes))


def _borrowed(allocations: Allocations, own: set[str]) -> int:
    """How many classes come from providers that are not the host's."""
    return sum(len(amounts) for uuid, amounts in allocations.items() if uuid not in own)


def _left(provider: Provider, classes: Iterable[str]) -> float:
    """How much of each class is left, as parts of what there is, summed up."""
    stocks = [stock for name in classes if (stock := provider.stocks.get(name)) is not None and stock.capacity > 0]
    return sum((stock.capacity - stock.used) / stock.capacity for stock in stocks)
