"""Weighers: they order the hosts that pass all filters. One file each, a pure function over columns.

    def weigh(request, hosts, rows): ...   # a number for each of the rows, or None if they are all equal

The plan scales the numbers to 0..1 and multiplies them. `reads` requests counts of `hosts.loads`, as in filters. The
metadata of an aggregate may override the multiplier for its hosts: `ram_weight_multiplier` for the weigher `ram`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kilonova.scheduler import plugins
from kilonova.scheduler.config import WEIGHTS
from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.arrays import Integers, Numbers
    from kilonova.scheduler.snapshot import Hosts


class Weigher(NamedTuple):
    name: str
    multiplier: float
    weigh: Callable[[Request, Hosts, Integers], Numbers | None]
    reads: tuple[str, ...] = ()
    """The counts of `host_load` that it reads."""

    def multipliers(self, hosts: Hosts, rows: Integers) -> float | Numbers:
        """The configured multiplier, or the one of the host's aggregates."""
        numbers = hosts.aggregates.numbers(f"{self.name}_weight_multiplier")
        if numbers is None:
            return self.multiplier
        import numpy as np

        own = numbers.take(rows)
        return np.where(np.isnan(own), self.multiplier, own)


def load(weights: Mapping[str, float]) -> tuple[Weigher, ...]:
    """Load the built-in weighers and those in `weights`, which also overrides default multipliers.

    A multiplier of zero disables a weigher. Raises ValueError for an unknown name.
    """
    return tuple(_load(name, multiplier) for name, multiplier in {**WEIGHTS, **weights}.items() if multiplier)


def _load(name: str, multiplier: float) -> Weigher:
    module = plugins.find(plugins.WEIGHERS, name)
    try:
        return Weigher(name.rpartition(".")[2], multiplier, module.weigh, tuple(getattr(module, "reads", ())))
    except AttributeError as error:
        raise ValueError(f"{name!r} is not a scheduler weigher: {error}") from error
