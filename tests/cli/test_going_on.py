"""What was under way when a process ended goes on with the next one, at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.process import Cloud, kilonova

SLOW = {"KILONOVA_SIM__LATENCY__SPAWN": "600"}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_boot_goes_on(tmp_path: Path, end: str) -> None:
    cloud = Cloud(tmp_path / "data", environ=SLOW)
    with cloud:
        identity = cloud.client().boot()
        cloud.client().wait(identity, task_state="spawning")
        metrics = cloud.client().plain("GET", cloud.endpoints["compute"].replace("/compute/v2.1", "/metrics"))
        assert b'kilonova_operations{kind="boot",state="running"} 1.0' in metrics.body
        if end == "stop":
            assert cloud.stop() == 0, "a step that takes long holds nothing up"
            assert not (cloud.data / "endpoints.json").exists()
        else:
            cloud.kill()
        assert kilonova("doctor", "--data", str(cloud.data)).returncode == 0, "under way is not wrong"
        cloud.environ.clear()
        cloud.start()
        cloud.client().wait(identity, status="ACTIVE")
        beside = kilonova("doctor", "--data", str(cloud.data), fresh=True)
        assert beside.returncode == 0, beside.stdout
        assert "Everything agrees" in beside.stdout


def test_the_doctor_finds_a_lost_guest(tmp_path: Path) -> None:
    import apsw
    import orjson

    with Cloud(tmp_path / "data") as cloud:
        identity = cloud.client().boot()
        cloud.client().wait(identity, status="ACTIVE")
        time.sleep(1.1)  # what has just ended is not yet looked at
        connection = apsw.Connection(str(cloud.data / "sim.db"))
        connection.set_busy_timeout(60_000)
        connection.execute("DELETE FROM guests")
        connection.close()
        table = kilonova("doctor", "--data", str(cloud.data))
        assert table.returncode == 1
        assert "guest missing" in table.stdout
        assert identity in table.stdout
        assert "What to do:\n- guest missing: lost by its host: delete the server and boot it anew" in table.stdout
        machine = kilonova("doctor", "--data", str(cloud.data), "--json")
        assert machine.returncode == 1
        (found,) = orjson.loads(machine.stdout)
        assert (found["kind"], found["subject"]) == ("guest missing", identity)
        assert found["remedy"].startswith("lost by its host")


def test_the_doctor_needs_a_cloud(tmp_path: Path) -> None:
    refused = kilonova("doctor", "--data", str(tmp_path))
    assert refused.returncode == 1
    assert "holds no cloud" in refused.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is made by looking"
