"""The inventory of one resource class, as columns over all hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kilonova.placement.reshape_plan import InventoryAmounts
from kilonova.scheduler.arrays import Integers, Numbers, extended

if TYPE_CHECKING:
    from kilonova.scheduler.provider_trees import InventorySummary

_EMPTY = InventoryAmounts(total=0, reserved=0, min_unit=1, max_unit=0, step_size=1, allocation_ratio=1.0)


class InventoryColumns:
    """A host without the resource class has a capacity of zero."""

    def __init__(self, size: int) -> None:
        self.capacity: Numbers = np.zeros(size)
        self.used: Numbers = np.zeros(size)
        self.proposed: Numbers = np.zeros(size)
        self.min_unit: Integers = np.ones(size, np.int64)
        self.max_unit: Numbers = np.zeros(size)
        self.step_size: Integers = np.ones(size, np.int64)
        self.free: Numbers = np.zeros(size)
        self.max_allocation: Numbers = np.zeros(size)
        """The most that one server can get: the free amount, but at most `max_unit`."""
        self.has_unit_rules = False
        """Whether any host has a `min_unit` or `step_size` above one."""
        self.version = 0
        """Increases with every change."""

    @property
    def limit(self) -> Numbers:
        """The former name of `capacity`, for filters of other packages."""
        return self.capacity

    def set_inventory(self, row: int, amounts: InventoryAmounts | None) -> None:
        amounts = amounts or _EMPTY
        self.capacity[row] = (amounts.total - amounts.reserved) * amounts.allocation_ratio
        self.min_unit[row] = amounts.min_unit
        self.max_unit[row] = amounts.max_unit
        self.step_size[row] = amounts.step_size
        self.has_unit_rules = self.has_unit_rules or amounts.min_unit > 1 or amounts.step_size > 1

    def set_used(self, row: int, used: int) -> None:
        self.used[row] = used
        self._update_free(row)

    def add_proposed(self, row: int, amount: int) -> None:
        self.proposed[row] += amount
        self._update_free(row)

    def set_summary(self, row: int, summary: InventorySummary) -> None:
        """Write the row of a host with several providers."""
        self.capacity[row] = summary.capacity
        self.used[row] = summary.used
        self.proposed[row] = summary.proposed
        self.min_unit[row] = summary.min_unit
        self.max_unit[row] = summary.max_unit
        self.step_size[row] = summary.step_size
        self.free[row] = summary.capacity - summary.used - summary.proposed
        self.max_allocation[row] = summary.max_allocation
        self.has_unit_rules = self.has_unit_rules or summary.min_unit > 1 or summary.step_size > 1
        self.version += 1

    def grow(self, by: int) -> None:
        self.version += 1
        for name in ("capacity", "used", "proposed", "max_unit", "free", "max_allocation"):
            setattr(self, name, extended(getattr(self, name), by))
        for name in ("min_unit", "step_size"):
            setattr(self, name, extended(getattr(self, name), by, 1))

    def _update_free(self, row: int) -> None:
        free = self.capacity[row] - self.used[row] - self.proposed[row]
        self.free[row] = free
        self.max_allocation[row] = min(free, self.max_unit[row])
        self.version += 1
