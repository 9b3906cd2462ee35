"""`kilonova up`, `api` and `worker` on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_passwords import statuses_of_logins
from tests.support.cloud_process import CloudProcess, NotStarted, kilonova

pytestmark = pytest.mark.parametrize("empty_url", ["postgresql"], indirect=True)


def test_up_on_postgresql(tmp_path: Path, empty_url: str) -> None:
    with CloudProcess(tmp_path / "data", "--database", empty_url, fresh=True) as cloud:
        server_id = cloud.client().boot()
        cloud.client().wait(server_id, status="ACTIVE")
        assert not (cloud.data / "kilonova.db").exists()
        cloud.kill()
        cloud.start()
        cloud.client().wait(server_id, status="ACTIVE")
        healthy = kilonova("doctor", "--data", str(cloud.data), "--database", empty_url)
        assert healthy.returncode == 0, healthy.stdout


def test_api_and_workers_as_separate_processes(tmp_path: Path, empty_url: str) -> None:
    data, database = tmp_path / "data", ("--database", empty_url)
    short_lease = {"KILONOVA_OPERATIONS__LEASE_SECONDS": "2"}
    first = CloudProcess(data, *database, command=("worker",), environ=short_lease, fresh=True)
    second = CloudProcess(data, *database, command=("worker",), environ=short_lease)
    with CloudProcess(data, *database, command=("api",), fresh=True) as api:
        client = api.client()
        waiting = client.boot()
        assert client.get("compute", f"/servers/{waiting}").json()["server"]["status"] == "BUILD", (
            "no worker is running yet"
        )
        with first, second:
            client.wait(waiting, status="ACTIVE")
            refused = kilonova("up", "--data", str(data), *database, "--port", "0")
            assert refused.returncode == 3
            first.kill()
            client.wait(client.boot("after-kill"), status="ACTIVE")
            assert second.stop() == 0


def test_every_login_succeeds_while_another_process_removes_a_role(tmp_path: Path, empty_url: str) -> None:
    data, database = tmp_path / "data", ("--database", empty_url)
    with CloudProcess(data, *database, command=("api",), fresh=True) as first:
        admin, clients = first.client("kilonova"), [first.client()]
        with CloudProcess(data, *database, command=("api",)) as second:
            assert second.endpoints["identity"] != admin.endpoints["identity"]
            clients += [second.client(), second.client()]
            statuses = statuses_of_logins(admin, clients)
            assert set(statuses) == {201}, statuses


def test_dry_run_in_api_process(tmp_path: Path, empty_url: str) -> None:
    """An API process without worker and hosts loads the scheduler only for the first dry run."""
    data, database = tmp_path / "data", ("--database", empty_url)
    with (
        CloudProcess(data, *database, "--hosts", "2", command=("worker",)) as worker,
        CloudProcess(data, *database, command=("api",), fresh=True) as api,
    ):
        client = api.client("kilonova")
        image = client.get("image", "/images").json()["images"][0]["id"]
        server = {"name": "s", "flavorRef": "1", "imageRef": image, "networks": "auto"}
        dry = {"X-Kilonova-Dry-Run": "1"}
        assert "numpy" not in _mapped_files(api)
        response = client.post("compute", "/servers", {"server": server}, version="2.37", headers=dry)
        assert response.status == 200, response.body
        (plan,) = response.json()["plan"]["plans"]
        assert plan["message"] == "2 of 2 hosts fit"
        assert plan["chosen"]["host"].startswith("sim-")
        assert "numpy" in _mapped_files(api)
        assert client.get("compute", "/servers").json()["servers"] == []
        assert worker.running


def _mapped_files(cloud: CloudProcess) -> str:
    return Path(f"/proc/{cloud.pid}/maps").read_text()


def test_other_data_directory_is_refused(tmp_path: Path, empty_url: str) -> None:
    """Passwords and images of another data directory do not match the database."""
    with CloudProcess(tmp_path / "one", "--database", empty_url):
        pass
    with pytest.raises(NotStarted) as refused:
        CloudProcess(tmp_path / "two", "--database", empty_url).start()
    assert refused.value.code == 1
    assert "secrets.json" in refused.value.output
