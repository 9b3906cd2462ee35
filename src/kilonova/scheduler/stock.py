"""The columns of one resource class, and the proposals that are counted in them before they are claimed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kilonova.placement.providers import Amounts

if TYPE_CHECKING:
    from kilonova.scheduler.trees import Summary

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_NOTHING = Amounts(total=0, reserved=0, min_unit=1, max_unit=0, step_size=1, allocation_ratio=1.0)


class Stock:
    """A host without the class has a limit of zero."""

    def __init__(self, size: int) -> None:
        self.limit: Numbers = np.zeros(size)
        self.used: Numbers = np.zeros(size)
        self.foreseen: Numbers = np.zeros(size)
        self.min_unit: Integers = np.ones(size, np.int64)
        self.max_unit: Numbers = np.zeros(size)
        self.step_size: Integers = np.ones(size, np.int64)
        self.free: Numbers = np.zeros(size)
        self.room: Numbers = np.zeros(size)
        """What one more server may have: what is free, but no more than `max_unit`."""
        self.odd = False
        """Whether any host has a least amount or a step other than one."""
        self.version = 0
        """Grows with every change."""

    def set_inventory(self, row: int, amounts: Amounts | None) -> None:
        amounts = amounts or _NOTHING
        self.limit[row] = (amounts.total - amounts.reserved) * amounts.allocation_ratio
        self.min_unit[row] = amounts.min_unit
        self.max_unit[row] = amounts.max_unit
        self.step_size[row] = amounts.step_size
        self.odd = self.odd or amounts.min_unit > 1 or amounts.step_size > 1

    def set_used(self, row: int, used: int) -> None:
        self.used[row] = used
        self._settle(row)

    def foresee(self, row: int, amount: int) -> None:
        self.foreseen[row] += amount
        self._settle(row)

    def set_summary(self, row: int, summary: Summary) -> None:
        """The columns of a host that is several providers; its room is what the best of them can give."""
        self.limit[row] = summary.limit
        self.used[row] = summary.used
        self.foreseen[row] = summary.foreseen
        self.min_unit[row] = summary.min_unit
        self.max_unit[row] = summary.max_unit
        self.step_size[row] = summary.step_size
        self.free[row] = summary.limit - summary.used - summary.foreseen
        self.room[row] = summary.room
        self.odd = self.odd or summary.min_unit > 1 or summary.step_size > 1
        self.version += 1

    def grow(self, by: int) -> None:
        self.version += 1
        for name in ("limit", "used", "foreseen", "max_unit", "free", "room"):
            setattr(self, name, longer(getattr(self, name), by))
        for name in ("min_unit", "step_size"):
            setattr(self, name, longer(getattr(self, name), by, 1))

    def _settle(self, row: int) -> None:
        free = self.limit[row] - self.used[row] - self.foreseen[row]
        self.free[row] = free
        self.room[row] = min(free, self.max_unit[row])
        self.version += 1


class _Proposal:
    """What a candidate would take from one provider."""

    __slots__ = ("amounts", "host", "open", "provider", "until")

    def __init__(self, host: int, provider: int, amounts: Mapping[str, int], until: float) -> None:
        self.host = host
        self.provider = provider
        self.amounts = amounts
        self.until = until
        self.open = True


class Foresight:
    """Proposals count as if they were claimed until the claim shows in the database, or time has passed.

    Otherwise boots that run side by side would all be sent to the same best host. An error here, in either
    direction, costs a proposal: the claim decides. Providers are named by their ids; `count` is told of every amount
    that begins (1) or ends (-1) to count on one.
    """

    def __init__(self, count: Callable[[int, Mapping[str, int], int], None]) -> None:
        self._count = count
        self._all: deque[_Proposal] = deque()
        self._by_provider: dict[int, deque[_Proposal]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_provider)

    def add(self, host: int, allocations: Mapping[int, Mapping[str, int]], until: float) -> None:
        """A candidate was proposed: `host` is its own provider, which need not be among those it takes from."""
        for provider, amounts in allocations.items():
            proposal = _Proposal(host, provider, amounts, until)
            self._all.append(proposal)
            self._by_provider.setdefault(provider, deque()).append(proposal)
            self._count(provider, amounts, 1)

    def expire(self, now: float) -> None:
        while self._all and (not self._all[0].open or self._all[0].until <= now):
            proposal = self._all.popleft()
            if proposal.open:
                self._end(proposal)

    def settle(self, provider: int, number: int) -> None:
        """The oldest proposals of a provider were claimed, or came to nothing."""
        waiting = self._by_provider.get(provider)
        while waiting and number > 0:
            self._end(waiting[0])
            number -= 1

    def give_up(self, host: int, providers: Iterable[int]) -> None:
        """The oldest proposal of a host, which takes from some of these providers, came to nothing."""
        for provider in providers:
            found = next((one for one in self._by_provider.get(provider, ()) if one.host == host), None)
            if found is not None:
                self._end(found)

    def drop(self, provider: int) -> None:
        self.settle(provider, len(self._by_provider.get(provider, ())))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """For the time of a plan, count nothing but what is claimed."""
        proposals = [proposal for waiting in self._by_provider.values() for proposal in waiting]
        for proposal in proposals:
            self._count(proposal.provider, proposal.amounts, -1)
        try:
            yield
        finally:
            for proposal in proposals:
                self._count(proposal.provider, proposal.amounts, 1)

    def _end(self, proposal: _Proposal) -> None:
        waiting = self._by_provider[proposal.provider]
        waiting.remove(proposal)
        if not waiting:
            del self._by_provider[proposal.provider]
        proposal.open = False
        self._count(proposal.provider, proposal.amounts, -1)


def longer(column: npt.NDArray[Any], by: int, fill: int = 0) -> npt.NDArray[Any]:
    return np.concatenate([column, np.full(by, fill, column.dtype)])
