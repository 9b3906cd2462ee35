"""The control plane is killed and comes back hours later: what it was at goes on, however short the deadlines were."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.support.databases import DIALECTS, opened
from tests.support.process import Cloud

HOURS = 3 * 3600.0
SLOW = {"KILONOVA_SIM__LATENCY__SPAWN": "20"}
AT_ONCE = {"KILONOVA_SIM__LATENCY__SPAWN": "0"}


@pytest.mark.parametrize("empty_url", DIALECTS, indirect=True)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_what_was_begun_before_a_long_outage_goes_on(empty_url: str, tmp_path: Path, how: signal.Signals) -> None:
    data = tmp_path / "data"
    with Cloud(data, "--database", empty_url, environ=SLOW) as cloud:
        client = cloud.client(version="2.96")
        server_id = client.boot()
        client.wait(server_id, task_state="spawning")
        if how is signal.SIGKILL:
            cloud.kill()
        else:
            cloud.stop()
    assert asyncio.run(_let_pass(empty_url, HOURS)) == 1
    with Cloud(data, "--database", empty_url, environ=AT_ONCE) as cloud:
        client = cloud.client(version="2.96")
        client.wait(server_id, status="ACTIVE")
        (action,) = client.get("compute", f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
        assert action["message"] is None


async def _let_pass(database_url: str, seconds: float) -> int:
    """Everything stored about the operation is so much older."""
    moments = ("step_started_at", "round_started_at", "run_at", "created_at", "updated_at")
    older = ", ".join(f"{column} = {column} - {seconds}" for column in moments)
    lease = f"lease_until = CASE WHEN lease_until > 0 THEN lease_until - {seconds} ELSE 0 END"
    async with opened(database_url) as db, db.transaction() as tx:
        return await tx.execute(f"UPDATE operations SET {older}, {lease} WHERE finished_at IS NULL")
