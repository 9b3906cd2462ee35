"""Server groups, hints and destinations with the stock client."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Cloud

NEW = ("server", "create", "--flavor", "m1.tiny", "--image", "cirros-sim", "--nic", "none")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("placing") / "data", "--hosts", "3") as running:
        yield running


class Asker:
    """Asks the stock client, with a process for each command."""

    def __init__(self, program: Path, cloud: Cloud) -> None:
        self.program = program
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        self.environ["OS_CLIENT_CONFIG_FILE"] = str(cloud.data / "clouds.yaml")

    def __call__(self, *arguments: str, as_: str = "kilonova-demo", version: str = "2.96") -> str:
        """What the client prints."""
        command = [str(self.program), "--os-compute-api-version", version, *arguments]
        environ = {**self.environ, "OS_CLOUD": as_}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str, **options: str) -> Any:
        return json.loads(self(*arguments, "-f", "json", **options))


@pytest.fixture
def ask(openstack: Path, cloud: Cloud) -> Asker:
    return Asker(openstack, cloud)


def test_a_group_keeps_its_servers_apart(cloud: Cloud, ask: Asker) -> None:
    rule = ("--rule", "max_server_per_host=1")
    made = ask.json("server", "group", "create", "--policy", "anti-affinity", *rule, "g")
    assert made["policy"] == "anti-affinity"
    group_id = made["id"]
    old = ask.json("server", "group", "create", "--policy", "affinity", "old", version="2.1")
    listed = ask.json("server", "group", "list")
    assert [(group["Name"], group["Policy"]) for group in listed] == [("g", "anti-affinity"), ("old", "affinity")]
    ask(*NEW, "--hint", f"group={group_id}", "--min", "2", "--max", "2", "apart")
    shown = ask.json("server", "group", "show", group_id)
    assert len(shown["members"]) == 2
    admin = cloud.client("kilonova", version="2.96")
    servers = [admin.wait(identity, status="ACTIVE") for identity in shown["members"]]
    assert len({server["OS-EXT-SRV-ATTR:host"] for server in servers}) == 2
    ask("server", "group", "delete", group_id, old["id"])
    assert ask.json("server", "group", "list") == []


@pytest.mark.parametrize(
    "destination",
    [
        ("--host", "sim-002"),
        ("--hypervisor-hostname", "sim-002"),
        ("--availability-zone", "nova:sim-002"),
    ],
    ids=lambda words: " ".join(words),
)
def test_administrators_say_where(cloud: Cloud, ask: Asker, destination: tuple[str, str]) -> None:
    made = ask.json(*NEW, *destination, "there", as_="kilonova")
    there = cloud.client("kilonova").wait(made["id"], status="ACTIVE")
    assert there["OS-EXT-SRV-ATTR:host"] == "sim-002"


def test_a_pin_is_dropped_and_set_again(cloud: Cloud, ask: Asker) -> None:
    server_id = ask.json(*NEW, "--availability-zone", "nova", "pinned")["id"]
    cloud.client("kilonova").wait(server_id, status="ACTIVE")

    def shown() -> tuple[str, str | None]:
        server = ask.json("server", "show", server_id, version="2.104")
        return server["OS-EXT-AZ:availability_zone"], server["pinned_availability_zone"]

    assert shown() == ("nova", "nova")
    ask("server", "unset", "--pinned-availability-zone", server_id, version="2.104")
    assert shown() == ("nova", None)
    with pytest.raises(AssertionError, match="cannot be pinned to elsewhere: it is in the availability zone nova"):
        ask("server", "set", "--pinned-availability-zone", "elsewhere", server_id, version="2.104")
    ask("server", "set", "--pinned-availability-zone", "nova", server_id, version="2.104")
    assert shown() == ("nova", "nova")
