"""Operations continue after an outage of hours, even with short deadlines."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.support.cloud_process import CloudProcess
from tests.support.databases import DIALECTS, opened

OUTAGE_SECONDS = 3 * 3600.0
SLOW_SPAWN = {"KILONOVA_SIM__LATENCY__SPAWN": "20"}
FAST_SPAWN = {"KILONOVA_SIM__LATENCY__SPAWN": "0"}


@pytest.mark.parametrize("empty_url", DIALECTS, indirect=True)
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_operation_continues_after_long_outage(empty_url: str, tmp_path: Path, signal_number: signal.Signals) -> None:
    data = tmp_path / "data"
    with CloudProcess(data, "--database", empty_url, environ=SLOW_SPAWN) as cloud:
        client = cloud.client(version="2.96")
        server_id = client.boot()
        client.wait(server_id, task_state="spawning")
        if signal_number is signal.SIGKILL:
            cloud.kill()
        else:
            cloud.stop()
    assert asyncio.run(_age_operations(empty_url, OUTAGE_SECONDS)) == 1
    with CloudProcess(data, "--database", empty_url, environ=FAST_SPAWN) as cloud:
        client = cloud.client(version="2.96")
        client.wait(server_id, status="ACTIVE")
        (action,) = client.get("compute", f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
        assert action["message"] is None


async def _age_operations(database_url: str, seconds: float) -> int:
    """Make the stored times of unfinished operations set_back. Return the number of operations."""
    columns = ("step_started_at", "round_started_at", "run_at", "created_at", "updated_at")
    set_back = ", ".join(f"{column} = {column} - {seconds}" for column in columns)
    lease = f"lease_until = CASE WHEN lease_until > 0 THEN lease_until - {seconds} ELSE 0 END"
    async with opened(database_url) as db, db.transaction() as tx:
        return await tx.execute(f"UPDATE operations SET {set_back}, {lease} WHERE finished_at IS NULL")
