"""`kilonova host drain` against a running cloud."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kilonova.hosts.drivers.sim.rules import Rules
from kilonova.hosts.drivers.sim.store import SIM_FILE_NAME, SimStore
from tests.cli.test_why import on_terminal
from tests.support.cloud_process import KILONOVA, Client, CloudProcess, kilonova

HOST = "OS-EXT-SRV-ATTR:host"
ENVIRON = {
    **{f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")},
    "KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "-1",
    "KILONOVA_API__MAX_LIMIT": "2",  # makes lists paginate
    "KILONOVA_HOSTS__REPORT_SECONDS": "0.2",
    "KILONOVA_OPERATIONS__HOST_TIMEOUT_SECONDS": "1",
}
TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    """Each test drains another host; the last three hosts receive the servers."""
    with CloudProcess(tmp_path_factory.mktemp("drain") / "data", "--hosts", "12", environ=ENVIRON) as cloud:
        yield cloud


DESTINATIONS = ("sim-010", "sim-011", "sim-012")
TO_OPTIONS = tuple(word for name in DESTINATIONS for word in ("--to", name))


class Operator:
    """The cloud's administrator, who boots servers on given hosts."""

    def __init__(self, cloud: CloudProcess) -> None:
        self.cloud = cloud

    @property
    def client(self) -> Client:
        return self.cloud.client("kilonova", version="2.96")

    def boot(self, name: str, host: str, flavor: str = "1") -> str:
        client = self.client
        image = client.get("image", "/images").json()["images"][0]["id"]
        server = {"name": name, "flavorRef": flavor, "imageRef": image, "networks": "auto"}
        body = {"server": {**server, "availability_zone": f":{host}"}}
        response = client.post("compute", "/servers", body)
        assert response.status == 202, response.body
        server_id: str = response.json()["server"]["id"]
        client.wait(server_id, status="ACTIVE")
        return server_id

    def server_action(self, server_id: str, action: str, body: Any = None, **until: str) -> None:
        response = self.client.post("compute", f"/servers/{server_id}/action", {action: body})
        assert response.status in (200, 202), response.body
        self.client.wait(server_id, **until)

    def show(self, server_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client.get("compute", f"/servers/{server_id}").json()["server"]
        return shown

    def put_into_error(self, server_id: str, host: str) -> None:
        """Put the server into ERROR by a delete that its host refuses."""
        with rules(self.cloud) as sim:
            sim.add_failure(host, "destroy", "error", 1, "the disk is busy")
        assert self.client.delete("compute", f"/servers/{server_id}").status == 204
        self.client.wait(server_id, status="ERROR")

    def service(self, host: str) -> dict[str, Any]:
        (found,) = self.client.get("compute", f"/os-services?host={host}").json()["services"]
        shown: dict[str, Any] = found
        return shown

    def update_service(self, host: str, **values: Any) -> None:
        response = self.client.put("compute", f"/os-services/{self.service(host)['id']}", values)
        assert response.status == 200, response.body

    def take_down(self, host: str) -> None:
        """Set the host's last report back until it is down."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while self.service(host)["state"] != "down":
            assert time.monotonic() < until
            self.cloud.set_last_report_back(host)
            time.sleep(0.5)


@pytest.fixture
def operator(cloud: CloudProcess) -> Operator:
    return Operator(cloud)


@contextmanager
def rules(cloud: CloudProcess) -> Iterator[Rules]:
    store = SimStore(cloud.data / SIM_FILE_NAME)
    try:
        yield Rules(store)
    finally:
        store.close()


def guest_names(cloud: CloudProcess, host: str) -> list[str]:
    """All guests of the host, including copies in slots."""
    store = SimStore(cloud.data / SIM_FILE_NAME)
    try:
        return [guest.name for guest in store.guests(host)]
    finally:
        store.close()


def drain(cloud: CloudProcess, host: str, *options: str) -> subprocess.CompletedProcess[str]:
    return kilonova("host", "drain", host, *options, "--data", str(cloud.data))


def table_rows(text: str) -> dict[str, str]:
    """The lines of a table, by their first word."""
    return {line.split()[0]: line for line in text.splitlines() if line.startswith(" ") and line.strip()}


def test_dry_run_shows_plan_and_changes_nothing(cloud: CloudProcess, operator: Operator) -> None:
    host = "sim-001"
    running, stopped = operator.boot("dry-running", host), operator.boot("dry-stopped", host)
    operator.server_action(stopped, "os-stop", status="SHUTOFF")
    broken = operator.boot("dry-broken", host)
    operator.put_into_error(broken, host)
    before = guest_names(cloud, host)
    shown = drain(cloud, host, "--dry-run", *TO_OPTIONS)
    assert shown.returncode == 1, "a server would stay"
    assert f"{host} is up and has 3 servers. Nothing is changed." in shown.stdout
    found = table_rows(shown.stdout)
    assert re.search(r"ACTIVE +live migration +sim-01[012]", found["dry-running"])
    assert re.search(r"SHUTOFF +migration and its confirmation +sim-01[012]", found["dry-stopped"])
    assert "is in ERROR; repair, rebuild or delete it" in found["dry-broken"]
    assert guest_names(cloud, host) == before
    assert operator.service(host)["status"] == "enabled"
    for server_id in (running, stopped, broken):
        assert operator.show(server_id)[HOST] == host
        actions = operator.client.get("compute", f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
        assert {action["action"] for action in actions} <= {"create", "stop", "delete"}
    operator.update_service(DESTINATIONS[0], status="disabled")
    refused = table_rows(drain(cloud, host, "--dry-run", "--to", DESTINATIONS[0]).stdout)
    operator.update_service(DESTINATIONS[0], status="enabled")
    assert "1 disabled" in refused["dry-running"]


def test_each_server_leaves_by_the_action_of_its_state(cloud: CloudProcess, operator: Operator) -> None:
    host = "sim-002"
    running, stopped, shelved, paused = (
        operator.boot(name, host) for name in ("running", "stopped", "shelved", "paused")
    )
    operator.server_action(paused, "pause", status="PAUSED")
    here, there = operator.boot("resized-here", DESTINATIONS[0]), operator.boot("resized-there", host)
    operator.server_action(stopped, "os-stop", status="SHUTOFF")
    operator.server_action(shelved, "shelve", status="SHELVED")
    operator.server_action(here, "migrate", {"host": host}, status="VERIFY_RESIZE")
    operator.server_action(there, "migrate", {"host": DESTINATIONS[1]}, status="VERIFY_RESIZE")
    done = drain(cloud, host, *TO_OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{host} is now disabled, and up" in done.stdout
    assert f"{host} is empty: 6 servers moved away." in done.stdout
    assert guest_names(cloud, host) == []
    service = operator.service(host)
    assert (service["status"], service["disabled_reason"]) == ("disabled", "draining")
    wanted = {running: "ACTIVE", stopped: "SHUTOFF", shelved: "SHELVED_OFFLOADED", here: "ACTIVE", there: "ACTIVE"}
    wanted |= {paused: "PAUSED"}
    for server_id, status in wanted.items():
        shown = operator.show(server_id)
        assert shown["status"] == status
        assert shown[HOST] in (DESTINATIONS if status != "SHELVED_OFFLOADED" else (None,))
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("✓")}
    assert "after live migration to sim-01" in lines["running"]
    assert "after migration to sim-01" in lines["stopped"]
    assert f"confirmation of the resize ({host} still has its old guest)" in lines["stopped"]
    assert "after offloading" in lines["shelved"]
    assert "confirmation of the resize (required before it can be moved), live migration" in lines["resized-here"]
    assert f"confirmation of the resize ({host} still has its old guest)" in lines["resized-there"]
    again = drain(cloud, host)
    assert (again.returncode, f"{host} is empty: 0 servers moved away." in again.stdout) == (0, True)
    assert f"{host} is already disabled, and up" in again.stdout


def test_destinations_are_rotated_and_tried_in_turn(cloud: CloudProcess, operator: Operator) -> None:
    host = "sim-003"
    servers = [operator.boot(f"turn-{number}", host) for number in range(6)]
    operator.update_service(DESTINATIONS[2], status="disabled")
    done = drain(cloud, host, "--parallel", "2", *TO_OPTIONS)
    operator.update_service(DESTINATIONS[2], status="enabled")
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(operator.show(server_id)[HOST] for server_id in servers)
    assert set(found) == {DESTINATIONS[0], DESTINATIONS[1]}
    assert found.count(DESTINATIONS[0]) >= 2


def test_servers_that_stay_are_listed_with_reasons(cloud: CloudProcess, operator: Operator) -> None:
    host = "sim-004"
    broken, stays = operator.boot("broken", host), operator.boot("stays", host)
    operator.put_into_error(broken, host)
    with rules(cloud) as sim:
        sim.add_failure(DESTINATIONS[0], "expect", "error", None, "injected")
    operator.update_service(DESTINATIONS[1], status="disabled")
    done = drain(cloud, host, "--to", DESTINATIONS[0], "--to", DESTINATIONS[1])
    assert done.returncode == 1
    assert f"{host}: 0 servers moved away, 2 servers left:" in done.stdout
    found = table_rows(done.stdout)
    assert "ERROR" in found["broken"]
    assert "is in ERROR" in found["broken"]
    assert f"{DESTINATIONS[0]}: The requested host cannot run the server" in found["stays"]
    assert f"{DESTINATIONS[1]}: No valid host was found" in found["stays"]
    assert operator.show(stays)["status"] == "ACTIVE"
    with rules(cloud) as sim:
        sim.clear(DESTINATIONS[0])
    operator.update_service(DESTINATIONS[1], status="enabled")
    again = drain(cloud, host, "--to", DESTINATIONS[0])
    assert (again.returncode, operator.show(stays)[HOST]) == (1, DESTINATIONS[0])
    assert operator.show(broken)[HOST] == host


def test_servers_of_down_host_are_evacuated(cloud: CloudProcess, operator: Operator) -> None:
    host = "sim-005"
    running, stopped, broken = (operator.boot(f"lost-{name}", host) for name in ("running", "stopped", "broken"))
    operator.server_action(stopped, "os-stop", status="SHUTOFF")
    operator.put_into_error(broken, host)
    with rules(cloud) as sim:
        sim.add_failure(host, "*", "unreachable", None, None)
    operator.take_down(host)
    planned = table_rows(drain(cloud, host, "--dry-run", *TO_OPTIONS).stdout)
    assert all(
        re.search("evacuation +sim-01[012]", planned[f"lost-{name}"]) for name in ("running", "stopped", "broken")
    )
    done = drain(cloud, host, *TO_OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{host} is now disabled, and down: its servers are evacuated" in done.stdout
    statuses = {operator.show(server_id)["status"] for server_id in (running, stopped, broken)}
    assert (operator.show(running)["status"], statuses) == ("ACTIVE", {"ACTIVE", "SHUTOFF"})
    assert len(guest_names(cloud, host)) == 3
    with rules(cloud) as sim:
        sim.clear(host)
    until = time.monotonic() + TIMEOUT_SECONDS
    while operator.service(host)["state"] != "up":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert guest_names(cloud, host) == []


@contextmanager
def running_drain(cloud: CloudProcess, host: str, output: Path) -> Iterator[subprocess.Popen[str]]:
    """A running drain."""
    command = [KILONOVA, "host", "drain", host, *TO_OPTIONS, "--parallel", "3", "--data", str(cloud.data)]
    with (
        output.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, text=True, preexec_fn=_interruptible) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _interruptible() -> None:
    """Reset SIGINT, which background processes of a shell ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until_moving(operator: Operator, servers: list[str], least: int) -> None:
    """Wait until at least this many servers are moving or have moved."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while sum(operator.show(server_id)["OS-EXT-STS:task_state"] is not None for server_id in servers) < least:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_interrupted_drain_can_be_repeated(cloud: CloudProcess, operator: Operator, tmp_path: Path, how: str) -> None:
    host = {"killed": "sim-006", "interrupted": "sim-007"}[how]
    servers = [operator.boot(f"{how}-{number}", host) for number in range(5)]
    operator.server_action(servers[0], "os-stop", status="SHUTOFF")
    with rules(cloud) as sim:
        for step in ("migrate_live", "park"):
            sim.add_failure(host, step, "hang", None, None)
    output = tmp_path / "output"
    with running_drain(cloud, host, output) as process:
        wait_until_moving(operator, servers, 2)
        process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGINT)
        code = process.wait(TIMEOUT_SECONDS)
    if how == "interrupted":
        assert code == 1
        assert "interrupted; started operations continue" in output.read_text()
    with rules(cloud) as sim:
        sim.clear(host)
    assert any(operator.show(server_id)[HOST] == host for server_id in servers)
    done = drain(cloud, host, *TO_OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert guest_names(cloud, host) == []
    assert [operator.show(server_id)["status"] for server_id in servers] == ["SHUTOFF", *["ACTIVE"] * 4]


def test_drain_waits_for_restarting_cloud(tmp_path: Path) -> None:
    with CloudProcess(
        tmp_path / "data", "--hosts", "4", environ={**ENVIRON, "KILONOVA_OPERATIONS__LEASE_SECONDS": "1"}
    ) as own:
        operator = Operator(own)
        servers = [operator.boot(f"web-{number}", "sim-001") for number in range(4)]
        with rules(own) as sim:
            sim.add_failure("sim-001", "migrate_live", "hang", None, None)
        command = [KILONOVA, "host", "drain", "sim-001", "--parallel", "1", "--data", str(own.data)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            wait_until_moving(operator, servers, 1)
            own.kill()
            own.start()  # on another port
            with rules(own) as sim:
                sim.clear()
            body, _ = process.communicate(timeout=300)
        assert process.returncode == 0, body
        assert "sim-001 is empty" in body
        assert all(operator.show(server_id)[HOST] != "sim-001" for server_id in servers)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nowhere",), "there is no compute host 'nowhere'"),
        (("sim-009", "--to", "nowhere"), "--to: there is no compute host 'nowhere'"),
        (("sim-009", "--to", "sim-009"), "--to: sim-009 is the host to be drained"),
        (("sim-009", "--cloud", "kilonova-demo"), "Policy doesn't allow os_compute_api:os-services:list"),
    ],
)
def test_unknown_hosts_are_one_line_errors(
    cloud: CloudProcess, operator: Operator, arguments: tuple[str, ...], message: str
) -> None:
    refused = drain(cloud, *arguments)
    assert refused.returncode == 1
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert operator.service("sim-009")["status"] == "enabled"


def test_terminal_shows_progress(cloud: CloudProcess, operator: Operator) -> None:
    for number in range(2):
        operator.boot(f"seen-{number}", "sim-008")
    shown = on_terminal(120, "host", "drain", "sim-008", *TO_OPTIONS, "--data", str(cloud.data))
    assert re.search(r"sim-008.*━.*2/2", shown), shown
    assert "seen-1: live migration to sim-01" in shown
