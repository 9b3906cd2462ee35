"""Types of the numpy arrays that hold the snapshot: one element per hypervisor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def extended(column: npt.NDArray[Any], by: int, fill: int = 0) -> npt.NDArray[Any]:
    return np.concatenate([column, np.full(by, fill, column.dtype)])
