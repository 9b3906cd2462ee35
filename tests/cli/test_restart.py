"""Operations continue after a restart of the process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.cloud_process import CloudProcess, kilonova

SLOW_SPAWN = {"KILONOVA_SIM__LATENCY__SPAWN": "600"}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_boot_continues_after_restart(tmp_path: Path, end: str) -> None:
    cloud = CloudProcess(tmp_path / "data", environ=SLOW_SPAWN)
    with cloud:
        server_id = cloud.client().boot()
        cloud.client().wait(server_id, task_state="spawning")
        metrics = cloud.client().request_url("GET", cloud.endpoints["compute"].replace("/compute/v2.1", "/metrics"))
        assert b'kilonova_operations{kind="boot",state="running"} 1.0' in metrics.body
        if end == "stop":
            assert cloud.stop() == 0, "a long step does not delay the stop"
            assert not (cloud.data / "endpoints.json").exists()
        else:
            cloud.kill()
        assert kilonova("doctor", "--data", str(cloud.data)).returncode == 0, "a running operation is no finding"
        cloud.environ.clear()
        cloud.start()
        cloud.client().wait(server_id, status="ACTIVE")
        doctor = kilonova("doctor", "--data", str(cloud.data), fresh=True)
        assert doctor.returncode == 0, doctor.stdout
        assert "Everything agrees" in doctor.stdout


def test_doctor_finds_lost_guest(tmp_path: Path) -> None:
    import apsw
    import orjson

    with CloudProcess(tmp_path / "data") as cloud:
        server_id = cloud.client().boot()
        cloud.client().wait(server_id, status="ACTIVE")
        time.sleep(1.1)  # the doctor ignores operations that have just ended
        connection = apsw.Connection(str(cloud.data / "sim.db"))
        connection.set_busy_timeout(60_000)
        connection.execute("DELETE FROM guests")
        connection.close()
        table = kilonova("doctor", "--data", str(cloud.data))
        assert table.returncode == 1
        assert "guest missing" in table.stdout
        assert server_id in table.stdout
        assert "What to do:\n- guest missing: the host has lost it: delete the server and boot it again" in table.stdout
        as_json = kilonova("doctor", "--data", str(cloud.data), "--json")
        assert as_json.returncode == 1
        (found,) = orjson.loads(as_json.stdout)
        assert (found["kind"], found["subject"]) == ("guest missing", server_id)
        assert found["remedy"].startswith("the host has lost it")


def test_doctor_needs_a_cloud(tmp_path: Path) -> None:
    refused = kilonova("doctor", "--data", str(tmp_path))
    assert refused.returncode == 1
    assert "has no cloud" in refused.stderr
    assert list(tmp_path.iterdir()) == [], "the doctor creates no files"
