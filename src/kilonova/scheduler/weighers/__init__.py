"""Weighers: which of the hosts that can take a request should. One file each, a pure function over columns.

    def weigh(request, hosts, rows): ...   # a number for each of the rows, or None if they are all alike

The plan scales the numbers to 0..1 and multiplies them. `reads` may ask for the counts of `hosts.loads`, as in filters.
An aggregate's metadata may hold a multiplier for its hosts: `ram_weight_multiplier` for the weigher `ram`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kilonova.scheduler import plugins
from kilonova.scheduler.config import WEIGHTS
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.stock import Integers, Numbers


class Weigher(NamedTuple):
    name: str
    multiplier: float
    weigh: Callable[[Request, Hosts, Integers], Numbers | None]
    reads: tuple[str, ...] = ()
    """What it reads of hosts that is read for nobody else; see `loads`."""

    def multipliers(self, hosts: Hosts, rows: Integers) -> float | Numbers:
        """The configured multiplier, or that of each host's aggregates where one of them says otherwise."""
        said = hosts.aggregates.numbers(f"{self.name}_weight_multiplier")
        if said is None:
            return self.multiplier
        import numpy as np

        own = said.take(rows)
        return np.where(np.isnan(own), self.multiplier, own)


def load(weights: Mapping[str, float]) -> tuple[Weigher, ...]:
    """Our weighers with their usual multipliers unless others are given, and those of others that are given.

    Zero switches one off. Raises ValueError for a name that is none.
    """
    return tuple(_load(name, multiplier) for name, multiplier in {**WEIGHTS, **weights}.items() if multiplier)


def _load(name: str, multiplier: float) -> Weigher:
    module = plugins.find(plugins.WEIGHERS, name)
    try:
        return Weigher(name.rpartition(".")[2], multiplier, module.weigh, tuple(getattr(module, "reads", ())))
    except AttributeError as trouble:
        raise ValueError(f"{name!r} is no scheduler weigher: {trouble}") from trouble
