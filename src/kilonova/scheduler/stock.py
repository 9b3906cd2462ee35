"""The columns of one resource class, and the proposals that are counted in them before they are claimed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kilonova.placement.providers import Amounts

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

    def grow(self, by: int) -> None:
        for name in ("limit", "used", "foreseen", "max_unit", "free", "room"):
            setattr(self, name, longer(getattr(self, name), by))
        for name in ("min_unit", "step_size"):
            setattr(self, name, longer(getattr(self, name), by, 1))

    def _settle(self, row: int) -> None:
        free = self.limit[row] - self.used[row] - self.foreseen[row]
        self.free[row] = free
        self.room[row] = min(free, self.max_unit[row])


class _Proposal(NamedTuple):
    row: int
    amounts: dict[str, int]
    until: float


class Foresight:
    """Proposals count as if they were claimed until the claim shows in the database, or time has passed.

    Otherwise boots that run side by side would all be sent to the same best host. An error here, in either
    direction, costs a proposal: the claim decides.
    """

    def __init__(self, stocks: dict[str, Stock]) -> None:
        self._stocks = stocks
        self._all: deque[_Proposal] = deque()
        self._by_row: dict[int, deque[_Proposal]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_row)

    def add(self, row: int, amounts: Mapping[str, int], until: float) -> None:
        proposal = _Proposal(row, {name: n for name, n in amounts.items() if name in self._stocks}, until)
        self._all.append(proposal)
        self._by_row.setdefault(row, deque()).append(proposal)
        self._count(proposal, 1)

    def expire(self, now: float) -> None:
        while self._all and self._all[0].until <= now:
            proposal = self._all.popleft()
            waiting = self._by_row.get(proposal.row)
            if waiting and waiting[0] is proposal:
                self.settle(proposal.row, 1)

    def settle(self, row: int, number: int) -> None:
        """The oldest proposals of a row were claimed, or came to nothing."""
        waiting = self._by_row.get(row)
        while waiting and number > 0:
            self._count(waiting.popleft(), -1)
            number -= 1
        if waiting is not None and not waiting:
            del self._by_row[row]

    def drop(self, row: int) -> None:
        self.settle(row, len(self._by_row.get(row, ())))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """For the time of a plan, count nothing but what is claimed."""
        proposals = [proposal for waiting in self._by_row.values() for proposal in waiting]
        for proposal in proposals:
            self._count(proposal, -1)
        try:
            yield
        finally:
            for proposal in proposals:
                self._count(proposal, 1)

    def _count(self, proposal: _Proposal, sign: int) -> None:
        for name, amount in proposal.amounts.items():
            self._stocks[name].foresee(proposal.row, sign * amount)


def longer(column: npt.NDArray[Any], by: int, fill: int = 0) -> npt.NDArray[Any]:
    return np.concatenate([column, np.full(by, fill, column.dtype)])
