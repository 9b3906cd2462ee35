"""Operations that hosts have tickets for, without a worker that ends them."""

from __future__ import annotations

from typing import Any

from kilonova.compute.operations.steps.server import image_transfer
from kilonova.hosts.messages import Transfer
from kilonova.operations import Operation
from tests.compute.operations.steps.support import begin_leased_boot
from tests.support.full_cloud import FullCloud


async def operation_on_host(c: FullCloud, host: str = "sim-001") -> Operation:
    """An unfinished operation that has claimed the host."""
    op = await begin_leased_boot(c)
    await set_columns(c, op, host=host)
    return op


async def set_columns(c: FullCloud, op: Operation, **columns: Any) -> None:
    async with c.db.transaction() as tx:
        for name, value in columns.items():
            await tx.execute(f"UPDATE operations SET {name} = $2 WHERE id = $1", op.id, value)


async def transfer_for(c: FullCloud, image_id: str, method: Any = "GET", host: str = "sim-001") -> Transfer:
    return image_transfer(await operation_on_host(c, host), image_id, host, method)
