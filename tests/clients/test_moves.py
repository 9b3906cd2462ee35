"""All moves of a server, with the stock client in one session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_process import Client, CloudProcess, kilonova
from tests.support.openstack_session import TIMEOUT_SECONDS, OpenstackSession

HOST, ZONE = "OS-EXT-SRV-ATTR:host", "OS-EXT-AZ:availability_zone"
EAST, WEST = ("sim-001", "sim-003"), ("sim-002", "sim-004")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    directory = tmp_path_factory.mktemp("moves")
    # The client sends shelveOffload when it sees SHELVED, which fails if the cloud has offloaded the server.
    environ = {"KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "3600"}
    with CloudProcess(directory / "data", "--hosts", "4", "--zones", "east,west", environ=environ) as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: CloudProcess, tmp_path: Path) -> Iterator[OpenstackSession]:
    with OpenstackSession(openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.104") as opened:
        yield opened


class Scenario:
    """One server, commands on it, and its states."""

    def __init__(self, cloud: CloudProcess, session: OpenstackSession) -> None:
        self.cloud = cloud
        self.session = session
        self.admin: Client = cloud.client("kilonova", version="2.104")
        self.id = self.admin.boot("web")
        self.wait("ACTIVE")

    def run_and_wait(self, command: str, status: str) -> dict[str, Any]:
        """Run a command, in which `{}` is the server, and wait for the status."""
        before = len(self.actions())
        self.session.send(command.format(self.id))
        until = time.monotonic() + TIMEOUT_SECONDS
        while len(self.actions()) == before:
            assert time.monotonic() < until, (command, self.session.errors.read_text())
            time.sleep(0.02)
        return self.wait(status)

    def run_json(self, command: str) -> Any:
        return self.session.run_json(command.format(self.id))

    def wait(self, status: str) -> dict[str, Any]:
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            shown: dict[str, Any] = self.admin.get("compute", f"/servers/{self.id}").json()["server"]
            if shown["status"] == status and shown["OS-EXT-STS:task_state"] is None:
                return shown
            assert time.monotonic() < until, shown
            time.sleep(0.02)

    def actions(self) -> list[dict[str, Any]]:
        path = f"/servers/{self.id}/os-instance-actions"
        actions: list[dict[str, Any]] = self.admin.get("compute", path).json()["instanceActions"]
        return actions

    def pinned_zone(self) -> str | None:
        shown: str | None = self.run_json("server show {}")["pinned_availability_zone"]
        return shown

    def other_host(self) -> str:
        here = self.wait("ACTIVE")[HOST]
        return next(host for host in (*EAST, *WEST) if host != here)


def test_all_moves_of_a_server(cloud: CloudProcess, session: OpenstackSession) -> None:
    scenario = Scenario(cloud, session)
    check_shelve(scenario)
    check_pinned_zone(scenario)
    check_resize(scenario)
    check_migrate(scenario)
    live = check_live_migrate(scenario)
    check_evacuate(scenario)
    migrations = [(each["Type"], each["Status"]) for each in scenario.run_json("server migration list --server {}")]
    cold = [
        ("migration", "confirmed"),
        ("migration", "reverted"),
        ("resize", "confirmed"),
        ("resize", "reverted"),
    ]
    assert migrations == [("evacuation", "completed"), *live, *cold]
    hosts = scenario.run_json("hypervisor list")
    assert [(each["Hypervisor Hostname"], each["State"]) for each in hosts] == [
        (host, "up") for host in sorted((*EAST, *WEST))
    ]
    assert session.close() == ""


def check_shelve(scenario: Scenario) -> None:
    offload(scenario)
    assert scenario.run_and_wait("server unshelve --host sim-003 {}", "ACTIVE")[HOST] == "sim-003"
    scenario.run_and_wait("server shelve --offload {}", "SHELVED_OFFLOADED")
    unshelved = scenario.run_and_wait("server unshelve --availability-zone west {}", "ACTIVE")
    assert unshelved[HOST] in WEST
    assert unshelved["pinned_availability_zone"] == "west"
    offload(scenario)
    both = scenario.run_and_wait("server unshelve --availability-zone east --host sim-001 {}", "ACTIVE")
    assert (both[HOST], both["pinned_availability_zone"]) == ("sim-001", "east")
    offload(scenario)
    assert (
        scenario.run_and_wait("server unshelve --no-availability-zone {}", "ACTIVE")["pinned_availability_zone"] is None
    )


def offload(scenario: Scenario) -> None:
    """Offload by the API, because `shelve --offload` of the client polls every five seconds."""
    scenario.run_and_wait("server shelve {}", "SHELVED")
    response = scenario.admin.post("compute", f"/servers/{scenario.id}/action", {"shelveOffload": None})
    assert response.status == 202, response.body
    scenario.wait("SHELVED_OFFLOADED")


def check_pinned_zone(scenario: Scenario) -> None:
    zone = scenario.wait("ACTIVE")[ZONE]
    scenario.session.send(f"server set --pinned-availability-zone {zone} {scenario.id}")
    assert scenario.pinned_zone() == zone
    scenario.session.send(f"server unset --pinned-availability-zone {scenario.id}")
    assert scenario.pinned_zone() is None


def check_resize(scenario: Scenario) -> None:
    scenario.run_and_wait("server resize --flavor m1.small {}", "VERIFY_RESIZE")
    assert scenario.run_and_wait("server resize revert {}", "ACTIVE")["flavor"]["original_name"] == "m1.tiny"
    scenario.run_and_wait("server resize --flavor m1.small {}", "VERIFY_RESIZE")
    assert scenario.run_and_wait("server resize confirm {}", "ACTIVE")["flavor"]["original_name"] == "m1.small"


def check_migrate(scenario: Scenario) -> None:
    before = scenario.wait("ACTIVE")[HOST]
    scenario.run_and_wait("server migrate {}", "VERIFY_RESIZE")
    assert scenario.run_and_wait("server migration revert {}", "ACTIVE")[HOST] == before
    chosen = scenario.other_host()
    scenario.run_and_wait(f"server migrate --host {chosen} {{}}", "VERIFY_RESIZE")
    assert scenario.run_and_wait("server migration confirm {}", "ACTIVE")[HOST] == chosen


def check_live_migrate(scenario: Scenario) -> list[tuple[str, str]]:
    chosen = scenario.other_host()
    assert scenario.run_and_wait(f"server migrate --live-migration --host {chosen} {{}}", "ACTIVE")[HOST] == chosen
    assert scenario.run_and_wait("server migrate --live-migration {}", "ACTIVE")[HOST] != chosen
    set_live_migration_seconds(scenario.cloud, 600)
    before = scenario.wait("ACTIVE")[HOST]
    scenario.session.send(f"server migrate --live-migration {scenario.id}")
    scenario.session.send(f"server migration abort {scenario.id} {running_migration(scenario)}")
    assert scenario.wait("ACTIVE")[HOST] == before
    scenario.session.send(f"server migrate --live-migration {scenario.id}")
    scenario.session.send(f"server migration force complete {scenario.id} {running_migration(scenario)}")
    assert scenario.wait("ACTIVE")[HOST] != before
    set_live_migration_seconds(scenario.cloud, 0)
    return [("live-migration", status) for status in ("completed", "cancelled", "completed", "completed")]


def running_migration(scenario: Scenario) -> int:
    """The id of the running migration."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while not (found := scenario.run_json("server migration list --server {} --status running")):
        assert time.monotonic() < until, scenario.session.errors.read_text()
    # This release of the client cannot show a migration by its id.
    shown = scenario.run_json(f"server migration show {{}} {found[0]['UUID']}")
    assert (shown["ID"], shown["Status"], shown["Server UUID"]) == (found[0]["Id"], "running", scenario.id)
    return int(shown["ID"])


def set_live_migration_seconds(cloud: CloudProcess, seconds: float) -> None:
    """Set the duration of live migrations."""
    command = ("sim", "latency", "--step", "migrate_live", "--seconds", str(seconds), "--data", str(cloud.data))
    assert kilonova(*command).returncode == 0


def check_evacuate(scenario: Scenario) -> None:
    before = scenario.wait("ACTIVE")[HOST]
    scenario.session.send(f"compute service set --down {before} nova-compute")
    chosen = scenario.other_host()
    scenario.run_json(f"server evacuate --host {chosen} {{}}")
    assert scenario.wait("SHUTOFF")[HOST] == chosen, "since 2.95 evacuated servers stay stopped"
    until = time.monotonic() + TIMEOUT_SECONDS
    while [each["Status"] for each in scenario.run_json("server migration list --server {} --type evacuation")] != [
        "completed"
    ]:
        assert time.monotonic() < until
    scenario.session.send(f"compute service set --up {before} nova-compute")
    assert [each["State"] for each in scenario.run_json(f"compute service list --host {before}")] == ["up"]
