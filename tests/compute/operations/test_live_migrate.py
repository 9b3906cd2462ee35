"""Live migration, from its table: each step twice, failed and killed."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.compute.migrations.model import LIVE
from kilonova.compute.operations.live_migrate import LiveMigrate
from kilonova.operations import Operation
from tests.compute.operations.worlds import MoveOperation


class TestLiveMigrate(MoveOperation):
    __test__ = True
    operation: ClassVar[type[Operation]] = LiveMigrate
    move_type: ClassVar[str] = LIVE
    params: ClassVar[dict[str, Any]] = {"block": None}
