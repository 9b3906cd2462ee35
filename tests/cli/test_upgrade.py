"""The present code continues clouds of older releases: their operations finish, and their servers can be used."""

from __future__ import annotations

import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from kilonova.store.migrations.head import HEAD
from tests.support.cloud_process import Client, CloudProcess, kilonova

DATA_DIRECTORIES = sorted((Path(__file__).parent / "data_directories").glob("*.tar.xz"))
# Of each server, the status after the upgrade.
STATUSES = {
    "steady": "ACTIVE",
    "stopped": "SHUTOFF",
    "resized": "VERIFY_RESIZE",
    "shelved": "SHELVED_OFFLOADED",
    "busy-boot": "ACTIVE",
    "busy-stop": "SHUTOFF",
    "busy-resize": "VERIFY_RESIZE",
    "busy-live": "ACTIVE",
    "busy-attach": "ACTIVE",
}


@pytest.mark.parametrize("archive", DATA_DIRECTORIES, ids=lambda path: path.name.partition(".")[0])
def test_cloud_of_an_older_schema_continues(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    with CloudProcess(tmp_path / "data", "--hosts", "3") as cloud:
        assert f"schema {HEAD} is current" in kilonova("db", "status", "--data", str(cloud.data)).stdout
        client = cloud.client("kilonova-demo-admin", version="2.96")
        servers = {server["name"]: server for server in idle_servers(client)}
        assert {name: server["status"] for name, server in servers.items()} == STATUSES
        for name in ("steady", "busy-attach"):
            assert len(servers[name]["os-extended-volumes:volumes_attached"]) == 1, name

        for name, action, status in (
            ("resized", {"confirmResize": None}, "ACTIVE"),
            ("busy-resize", {"revertResize": None}, "ACTIVE"),
            ("stopped", {"os-start": None}, "ACTIVE"),
            ("shelved", {"unshelve": None}, "ACTIVE"),
            ("steady", {"resize": {"flavorRef": "2"}}, "VERIFY_RESIZE"),
        ):
            server_id = servers[name]["id"]
            assert client.post("compute", f"/servers/{server_id}/action", action).status in (202, 204), name
            client.wait(server_id, status=status)
        client.wait(client.boot(), status="ACTIVE")
        idle_servers(client)
        examined = kilonova("doctor", "--data", str(cloud.data))
        assert examined.returncode == 0, examined.stdout


def idle_servers(client: Client) -> list[dict[str, Any]]:
    """All servers, once none has an operation under way."""
    until = time.monotonic() + 120
    while True:
        found: list[dict[str, Any]] = client.get("compute", "/servers/detail").json()["servers"]
        busy = [server["name"] for server in found if server["OS-EXT-STS:task_state"] or server["status"] == "BUILD"]
        if not busy:
            return found
        assert time.monotonic() < until, f"stuck: {busy}"
        time.sleep(0.05)
