"""`kilonova up`, `api` and `worker` on PostgreSQL: the same parts, together and apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.process import Cloud, NotStarted, kilonova

pytestmark = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)


def test_up_on_postgresql(tmp_path: Path, empty_url: str) -> None:
    with Cloud(tmp_path / "data", "--database", empty_url, fresh=True) as cloud:
        identity = cloud.client().boot()
        cloud.client().wait(identity, status="ACTIVE")
        assert not (cloud.data / "kilonova.db").exists()
        cloud.kill()
        cloud.start()
        cloud.client().wait(identity, status="ACTIVE")
        sound = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert sound.returncode == 0, sound.stdout


def test_api_and_workers_apart(tmp_path: Path, empty_url: str) -> None:
    data, database = tmp_path / "data", ("--database", empty_url)
    short = {"KILONOVA_OPERATIONS__LEASE_SECONDS": "2"}
    first = Cloud(data, *database, command=("worker",), environ=short, fresh=True)
    second = Cloud(data, *database, command=("worker",), environ=short)
    with Cloud(data, *database, command=("api",), fresh=True) as api:
        client = api.client()
        waiting = client.boot()
        assert client.get("compute", f"/servers/{waiting}").json()["server"]["status"] == "BUILD", "nobody works yet"
        with first, second:
            client.wait(waiting, status="ACTIVE")
            refused = kilonova("up", "--data", str(data), *database, "--port", "0")
            assert refused.returncode == 3
            first.kill()
            client.wait(client.boot("after the death of a worker"), status="ACTIVE")
            assert second.stop() == 0


def test_an_api_alone_can_try_a_plan(tmp_path: Path, empty_url: str) -> None:
    """It has no worker and no hosts, and takes no part of the scheduler into memory before it is asked."""
    data, database = tmp_path / "data", ("--database", empty_url)
    with (
        Cloud(data, *database, "--hosts", "2", command=("worker",)) as worker,
        Cloud(data, *database, command=("api",), fresh=True) as api,
    ):
        client = api.client("kilonova")
        image = client.get("image", "/images").json()["images"][0]["id"]
        server = {"name": "s", "flavorRef": "1", "imageRef": image, "networks": "auto"}
        dry = {"X-Kilonova-Dry-Run": "1"}
        assert "numpy" not in _mapped(api)
        answer = client.post("compute", "/servers", {"server": server}, version="2.37", headers=dry)
        assert answer.status == 200, answer.body
        (plan,) = answer.json()["plan"]["plans"]
        assert plan["message"] == "2 of 2 hosts fit"
        assert plan["chosen"]["host"].startswith("sim-")
        assert "numpy" in _mapped(api)
        assert client.get("compute", "/servers").json()["servers"] == []
        assert worker.running


def _mapped(cloud: Cloud) -> str:
    return Path(f"/proc/{cloud.pid}/maps").read_text()


def test_another_directory_is_refused(tmp_path: Path, empty_url: str) -> None:
    """Its passwords and images would not fit the database."""
    with Cloud(tmp_path / "one", "--database", empty_url):
        pass
    with pytest.raises(NotStarted) as refused:
        Cloud(tmp_path / "two", "--database", empty_url).start()
    assert refused.value.code == 1
    assert "secrets.json" in refused.value.output
