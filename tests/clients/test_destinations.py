"""Server groups, hints and destinations with the stock client."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_process import CloudProcess

CREATE_SERVER = ("server", "create", "--flavor", "m1.tiny", "--image", "cirros-sim", "--nic", "none")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("destinations") / "data", "--hosts", "3") as running:
        yield running


class ClientRunner:
    """Runs the stock client in a new process for each command."""

    def __init__(self, program: Path, cloud: CloudProcess) -> None:
        self.program = program
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        self.environ["OS_CLIENT_CONFIG_FILE"] = str(cloud.data / "clouds.yaml")

    def __call__(self, *arguments: str, as_: str = "kilonova-demo", version: str = "2.96") -> str:
        """The output of the client."""
        command = [str(self.program), "--os-compute-api-version", version, *arguments]
        environ = {**self.environ, "OS_CLOUD": as_}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str, **options: str) -> Any:
        return json.loads(self(*arguments, "-f", "json", **options))


@pytest.fixture
def run_client(openstack: Path, cloud: CloudProcess) -> ClientRunner:
    return ClientRunner(openstack, cloud)


def test_anti_affinity_group(cloud: CloudProcess, run_client: ClientRunner) -> None:
    rule = ("--rule", "max_server_per_host=1")
    created = run_client.json("server", "group", "create", "--policy", "anti-affinity", *rule, "g")
    assert created["policy"] == "anti-affinity"
    group_id = created["id"]
    old = run_client.json("server", "group", "create", "--policy", "affinity", "old", version="2.1")
    listed = run_client.json("server", "group", "list")
    assert [(group["Name"], group["Policy"]) for group in listed] == [("g", "anti-affinity"), ("old", "affinity")]
    run_client(*CREATE_SERVER, "--hint", f"group={group_id}", "--min", "2", "--max", "2", "apart")
    members = run_client.json("server", "group", "show", group_id)["members"]
    assert len(members) == 2
    admin = cloud.client("kilonova", version="2.96")
    servers = [admin.wait(server_id, status="ACTIVE") for server_id in members]
    assert len({server["OS-EXT-SRV-ATTR:host"] for server in servers}) == 2
    run_client("server", "group", "delete", group_id, old["id"])
    assert run_client.json("server", "group", "list") == []


@pytest.mark.parametrize(
    "destination",
    [
        ("--host", "sim-002"),
        ("--hypervisor-hostname", "sim-002"),
        ("--availability-zone", "nova:sim-002"),
    ],
    ids=lambda options: " ".join(options),
)
def test_admin_boots_on_destination(
    cloud: CloudProcess, run_client: ClientRunner, destination: tuple[str, str]
) -> None:
    created = run_client.json(*CREATE_SERVER, *destination, "there", as_="kilonova")
    server = cloud.client("kilonova").wait(created["id"], status="ACTIVE")
    assert server["OS-EXT-SRV-ATTR:host"] == "sim-002"


def test_unshelve_removes_and_sets_pinned_zone(cloud: CloudProcess, run_client: ClientRunner) -> None:
    server_id = run_client.json(*CREATE_SERVER, "--availability-zone", "nova", "pinned")["id"]
    cloud.client("kilonova").wait(server_id, status="ACTIVE")

    def pinned_zone() -> tuple[str, str | None]:
        server = run_client.json("server", "show", server_id, version="2.104")
        return server["OS-EXT-AZ:availability_zone"], server["pinned_availability_zone"]

    assert pinned_zone() == ("nova", "nova")
    run_client("server", "unset", "--pinned-availability-zone", server_id, version="2.104")
    assert pinned_zone() == ("nova", None)
    with pytest.raises(AssertionError, match="cannot be pinned to elsewhere: it is in the availability zone nova"):
        run_client("server", "set", "--pinned-availability-zone", "elsewhere", server_id, version="2.104")
    run_client("server", "set", "--pinned-availability-zone", "nova", server_id, version="2.104")
    assert pinned_zone() == ("nova", "nova")
