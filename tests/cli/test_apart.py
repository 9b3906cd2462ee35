"""`kilonova up`, `api` and `worker` on PostgreSQL: the same parts, together and apart."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Client, Cloud, NotStarted, kilonova

pytestmark = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)


def boot(client: Client, name: str = "web") -> str:
    image = client.get("image", "/images").json()["images"][0]["id"]
    body = {"server": {"name": name, "flavorRef": "1", "imageRef": image, "networks": "auto"}}
    answer = client.post("compute", "/servers", body, version="2.37")
    assert answer.status == 202, answer.body
    identity: str = answer.json()["server"]["id"]
    return identity


def wait_for(client: Client, identity: str, status: str, seconds: float = 30.0) -> dict[str, Any]:
    until = time.monotonic() + seconds
    while True:
        server: dict[str, Any] = client.get("compute", f"/servers/{identity}").json()["server"]
        if server["status"] == status:
            return server
        assert time.monotonic() < until, server
        time.sleep(0.02)


def test_up_on_postgresql(tmp_path: Path, empty_url: str) -> None:
    with Cloud(tmp_path / "data", "--database", empty_url) as cloud:
        identity = boot(cloud.client())
        wait_for(cloud.client(), identity, "ACTIVE")
        assert not (cloud.data / "kilonova.db").exists()
        cloud.kill()
        cloud.start()
        wait_for(cloud.client(), identity, "ACTIVE")
        sound = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert sound.returncode == 0, sound.stdout


def test_api_and_workers_apart(tmp_path: Path, empty_url: str) -> None:
    data, database = tmp_path / "data", ("--database", empty_url)
    short = {"KILONOVA_OPERATIONS__LEASE_SECONDS": "2"}
    first = Cloud(data, *database, command=("worker",), environ=short)
    second = Cloud(data, *database, command=("worker",), environ=short)
    with Cloud(data, *database, command=("api",)) as api:
        client = api.client()
        waiting = boot(client)
        assert client.get("compute", f"/servers/{waiting}").json()["server"]["status"] == "BUILD", "nobody works yet"
        with first, second:
            wait_for(client, waiting, "ACTIVE")
            refused = kilonova("up", "--data", str(data), *database, "--port", "0")
            assert refused.returncode == 3
            first.kill()
            wait_for(client, boot(client, "after the death of a worker"), "ACTIVE")
            assert second.stop() == 0


def test_another_directory_is_refused(tmp_path: Path, empty_url: str) -> None:
    """Its passwords and images would not fit the database."""
    with Cloud(tmp_path / "one", "--database", empty_url):
        pass
    with pytest.raises(NotStarted) as refused:
        Cloud(tmp_path / "two", "--database", empty_url).start()
    assert refused.value.code == 1
    assert "secrets.json" in refused.value.output
