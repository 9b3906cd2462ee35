"""Weighers: which of the hosts that can take a request should. One file each, a pure function over columns.

def weigh(request, hosts, rows): ...   # a number for each of the rows; the plan scales them to 0..1
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kilonova.scheduler.request import Request

if TYPE_CHECKING:
    from kilonova.scheduler.snapshot import Hosts
    from kilonova.scheduler.stock import Integers, Numbers


class Weigher(NamedTuple):
    name: str
    multiplier: float
    weigh: Callable[[Request, Hosts, Integers], Numbers]


def load(weights: Mapping[str, float]) -> tuple[Weigher, ...]:
    """The configured weighers that count. Raises ValueError for a name that is none."""
    return tuple(_load(name, multiplier) for name, multiplier in weights.items() if multiplier)


def _load(name: str, multiplier: float) -> Weigher:
    path = name if "." in name else f"{__name__}.{name}"
    try:
        module: Any = importlib.import_module(path)
        return Weigher(name.rpartition(".")[2], multiplier, module.weigh)
    except (ModuleNotFoundError, AttributeError) as trouble:
        raise ValueError(f"there is no scheduler weigher {name!r}: {trouble}") from trouble
