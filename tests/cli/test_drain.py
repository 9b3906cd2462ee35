"""`kilonova host drain` against a running cloud: everything leaves in its way, and a broken drain goes on."""

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
from kilonova.hosts.drivers.sim.store import FILE_NAME, SimStore
from tests.cli.test_why import on_terminal
from tests.support.process import KILONOVA, Client, Cloud, kilonova

HOST = "OS-EXT-SRV-ATTR:host"
ENVIRON = {
    **{f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")},
    "KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "-1",
    "KILONOVA_API__MAX_LIMIT": "2",  # lists come in pages
    "KILONOVA_HOSTS__REPORT_SECONDS": "0.2",
    "KILONOVA_OPERATIONS__HOST_SECONDS": "1",
}
SECONDS = 60


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Every test has a host of its own to empty; the last three take what is moved."""
    with Cloud(tmp_path_factory.mktemp("drain") / "data", "--hosts", "12", environ=ENVIRON) as cloud:
        yield cloud


TAKERS = ("sim-010", "sim-011", "sim-012")
TO = tuple(word for name in TAKERS for word in ("--to", name))


class Operator:
    """The cloud's administrator, who puts servers where the test wants them."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    @property
    def client(self) -> Client:
        return self.cloud.client("kilonova", version="2.96")

    def boot(self, name: str, host: str, flavor: str = "1") -> str:
        client = self.client
        image = client.get("image", "/images").json()["images"][0]["id"]
        server = {"name": name, "flavorRef": flavor, "imageRef": image, "networks": "auto"}
        body = {"server": {**server, "availability_zone": f":{host}"}}
        answer = client.post("compute", "/servers", body)
        assert answer.status == 202, answer.body
        identity: str = answer.json()["server"]["id"]
        client.wait(identity, status="ACTIVE")
        return identity

    def act(self, server_id: str, action: str, body: Any = None, **until: str) -> None:
        answer = self.client.post("compute", f"/servers/{server_id}/action", {action: body})
        assert answer.status in (200, 202), answer.body
        self.client.wait(server_id, **until)

    def show(self, server_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client.get("compute", f"/servers/{server_id}").json()["server"]
        return shown

    def break_(self, server_id: str, host: str) -> None:
        """A delete that its host refuses leaves the server in error."""
        with rules(self.cloud) as sim:
            sim.add_failure(host, "destroy", "error", 1, "the disk is busy")
        assert self.client.delete("compute", f"/servers/{server_id}").status == 204
        self.client.wait(server_id, status="ERROR")

    def service(self, host: str) -> dict[str, Any]:
        (found,) = self.client.get("compute", f"/os-services?host={host}").json()["services"]
        shown: dict[str, Any] = found
        return shown

    def change(self, host: str, **values: Any) -> None:
        answer = self.client.put("compute", f"/os-services/{self.service(host)['id']}", values)
        assert answer.status == 200, answer.body

    def is_down(self, host: str) -> None:
        """Once it is no longer heard of, and time has passed."""
        until = time.monotonic() + SECONDS
        while self.service(host)["state"] != "down":
            assert time.monotonic() < until
            self.cloud.age(host)
            time.sleep(0.5)


@pytest.fixture
def operator(cloud: Cloud) -> Operator:
    return Operator(cloud)


@contextmanager
def rules(cloud: Cloud) -> Iterator[Rules]:
    store = SimStore(cloud.data / FILE_NAME)
    try:
        yield Rules(store)
    finally:
        store.close()


def kept(cloud: Cloud, host: str) -> list[str]:
    """What the host has of any guest, also in slots."""
    store = SimStore(cloud.data / FILE_NAME)
    try:
        return [guest.name for guest in store.guests(host)]
    finally:
        store.close()


def drain(cloud: Cloud, host: str, *more: str) -> subprocess.CompletedProcess[str]:
    return kilonova("host", "drain", host, *more, "--data", str(cloud.data))


def rows(text: str) -> dict[str, str]:
    """The lines of a table by their first word."""
    return {line.split()[0]: line for line in text.splitlines() if line.startswith(" ") and line.strip()}


def test_a_dry_run_shows_the_plan_and_changes_nothing(cloud: Cloud, operator: Operator) -> None:
    host = "sim-001"
    runs, stands = operator.boot("dry-runs", host), operator.boot("dry-stands", host)
    operator.act(stands, "os-stop", status="SHUTOFF")
    broken = operator.boot("dry-broken", host)
    operator.break_(broken, host)
    before = kept(cloud, host)
    shown = drain(cloud, host, "--dry-run", *TO)
    assert shown.returncode == 1, "something would be left"
    assert f"{host} is up and has 3 servers. Nothing is changed." in shown.stdout
    found = rows(shown.stdout)
    assert re.search(r"ACTIVE +live migration +sim-01[012]", found["dry-runs"])
    assert re.search(r"SHUTOFF +migration and its confirmation +sim-01[012]", found["dry-stands"])
    assert "is in ERROR; repair, rebuild or delete it" in found["dry-broken"]
    assert kept(cloud, host) == before
    assert operator.service(host)["status"] == "enabled"
    for server_id in (runs, stands, broken):
        assert operator.show(server_id)[HOST] == host
        actions = operator.client.get("compute", f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
        assert {one["action"] for one in actions} <= {"create", "stop", "delete"}
    operator.change(TAKERS[0], status="disabled")
    refused = rows(drain(cloud, host, "--dry-run", "--to", TAKERS[0]).stdout)
    operator.change(TAKERS[0], status="enabled")
    assert "1 disabled" in refused["dry-runs"]


def test_everything_leaves_in_its_way(cloud: Cloud, operator: Operator) -> None:
    host = "sim-002"
    runs, stands, shelved, halts = (operator.boot(name, host) for name in ("runs", "stands", "shelved", "halts"))
    operator.act(halts, "pause", status="PAUSED")
    here, there = operator.boot("resized-here", TAKERS[0]), operator.boot("resized-there", host)
    operator.act(stands, "os-stop", status="SHUTOFF")
    operator.act(shelved, "shelve", status="SHELVED")
    operator.act(here, "migrate", {"host": host}, status="VERIFY_RESIZE")
    operator.act(there, "migrate", {"host": TAKERS[1]}, status="VERIFY_RESIZE")
    done = drain(cloud, host, *TO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{host} is now disabled, and up" in done.stdout
    assert f"{host} is empty: 6 servers moved away." in done.stdout
    assert kept(cloud, host) == []
    service = operator.service(host)
    assert (service["status"], service["disabled_reason"]) == ("disabled", "draining")
    wanted = {runs: "ACTIVE", stands: "SHUTOFF", shelved: "SHELVED_OFFLOADED", here: "ACTIVE", there: "ACTIVE"}
    wanted |= {halts: "PAUSED"}
    for server_id, status in wanted.items():
        shown = operator.show(server_id)
        assert shown["status"] == status
        assert shown[HOST] in (TAKERS if status != "SHELVED_OFFLOADED" else (None,))
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("✓")}
    assert "after live migration to sim-01" in lines["runs"]
    assert "after migration to sim-01" in lines["stands"]
    assert f"confirmation of the resize ({host} keeps it as it was before)" in lines["stands"]
    assert "after offloading" in lines["shelved"]
    assert "confirmation of the resize (it can be moved only after that), live migration" in lines["resized-here"]
    assert f"confirmation of the resize ({host} keeps it as it was before)" in lines["resized-there"]
    again = drain(cloud, host)
    assert (again.returncode, f"{host} is empty: 0 servers moved away." in again.stdout) == (0, True)
    assert f"{host} is already disabled, and up" in again.stdout


def test_destinations_take_turns_and_stand_in_for_each_other(cloud: Cloud, operator: Operator) -> None:
    host = "sim-003"
    servers = [operator.boot(f"turn-{number}", host) for number in range(6)]
    operator.change(TAKERS[2], status="disabled")
    done = drain(cloud, host, "--parallel", "2", *TO)
    operator.change(TAKERS[2], status="enabled")
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(operator.show(server_id)[HOST] for server_id in servers)
    assert set(found) == {TAKERS[0], TAKERS[1]}
    assert found.count(TAKERS[0]) >= 2


def test_what_cannot_leave_is_named_with_its_reason(cloud: Cloud, operator: Operator) -> None:
    host = "sim-004"
    broken, stays = operator.boot("broken", host), operator.boot("stays", host)
    operator.break_(broken, host)
    with rules(cloud) as sim:
        sim.add_failure(TAKERS[0], "expect", "error", None, "the moon is full")
    operator.change(TAKERS[1], status="disabled")
    done = drain(cloud, host, "--to", TAKERS[0], "--to", TAKERS[1])
    assert done.returncode == 1
    assert f"{host}: 0 servers moved away, 2 servers left:" in done.stdout
    found = rows(done.stdout)
    assert "ERROR" in found["broken"]
    assert "is in ERROR" in found["broken"]
    assert f"{TAKERS[0]}: The named host cannot have the server" in found["stays"]
    assert f"{TAKERS[1]}: No valid host was found" in found["stays"]
    assert operator.show(stays)["status"] == "ACTIVE"
    with rules(cloud) as sim:
        sim.clear(TAKERS[0])
    operator.change(TAKERS[1], status="enabled")
    again = drain(cloud, host, "--to", TAKERS[0])
    assert (again.returncode, operator.show(stays)[HOST]) == (1, TAKERS[0])
    assert operator.show(broken)[HOST] == host


def test_from_a_host_that_is_down_servers_are_evacuated(cloud: Cloud, operator: Operator) -> None:
    host = "sim-005"
    runs, stands, broken = (operator.boot(f"lost-{name}", host) for name in ("runs", "stands", "broken"))
    operator.act(stands, "os-stop", status="SHUTOFF")
    operator.break_(broken, host)
    with rules(cloud) as sim:
        sim.add_failure(host, "*", "unreachable", None, None)
    operator.is_down(host)
    planned = rows(drain(cloud, host, "--dry-run", *TO).stdout)
    assert all(re.search("evacuation +sim-01[012]", planned[f"lost-{name}"]) for name in ("runs", "stands", "broken"))
    done = drain(cloud, host, *TO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{host} is now disabled, and down: its servers are evacuated" in done.stdout
    statuses = {operator.show(server_id)["status"] for server_id in (runs, stands, broken)}
    assert (operator.show(runs)["status"], statuses) == ("ACTIVE", {"ACTIVE", "SHUTOFF"})
    assert len(kept(cloud, host)) == 3
    with rules(cloud) as sim:
        sim.clear(host)
    until = time.monotonic() + SECONDS
    while operator.service(host)["state"] != "up":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert kept(cloud, host) == []


@contextmanager
def draining(cloud: Cloud, host: str, output: Path) -> Iterator[subprocess.Popen[str]]:
    """A drain under way."""
    command = [KILONOVA, "host", "drain", host, *TO, "--parallel", "3", "--data", str(cloud.data)]
    with (
        output.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, text=True, preexec_fn=_interruptible) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _interruptible() -> None:
    """Also where the tests run in the background of a shell, which has them ignore what Ctrl-C sends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def moving(operator: Operator, servers: list[str], least: int) -> None:
    """Wait until so many are on their way or have arrived."""
    until = time.monotonic() + SECONDS
    while sum(operator.show(one)["OS-EXT-STS:task_state"] is not None for one in servers) < least:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_broken_drain_goes_on_where_it_was(cloud: Cloud, operator: Operator, tmp_path: Path, how: str) -> None:
    host = {"killed": "sim-006", "interrupted": "sim-007"}[how]
    servers = [operator.boot(f"{how}-{number}", host) for number in range(5)]
    operator.act(servers[0], "os-stop", status="SHUTOFF")
    with rules(cloud) as sim:
        for step in ("migrate_live", "park"):
            sim.add_failure(host, step, "hang", None, None)
    output = tmp_path / "output"
    with draining(cloud, host, output) as process:
        moving(operator, servers, 2)
        process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGINT)
        code = process.wait(SECONDS)
    if how == "interrupted":
        assert code == 1
        assert "stopped; what was begun goes on by itself" in output.read_text()
    with rules(cloud) as sim:
        sim.clear(host)
    assert any(operator.show(one)[HOST] == host for one in servers)
    done = drain(cloud, host, *TO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept(cloud, host) == []
    assert [operator.show(one)["status"] for one in servers] == ["SHUTOFF", *["ACTIVE"] * 4]


def test_a_cloud_that_is_restarted_meanwhile_is_waited_for(tmp_path: Path) -> None:
    with Cloud(
        tmp_path / "data", "--hosts", "4", environ={**ENVIRON, "KILONOVA_OPERATIONS__LEASE_SECONDS": "1"}
    ) as own:
        operator = Operator(own)
        servers = [operator.boot(f"web-{number}", "sim-001") for number in range(4)]
        with rules(own) as sim:
            sim.add_failure("sim-001", "migrate_live", "hang", None, None)
        command = [KILONOVA, "host", "drain", "sim-001", "--parallel", "1", "--data", str(own.data)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            moving(operator, servers, 1)
            own.kill()
            own.start()  # at another port
            with rules(own) as sim:
                sim.clear()
            told, _ = process.communicate(timeout=300)
        assert process.returncode == 0, told
        assert "sim-001 is empty" in told
        assert all(operator.show(one)[HOST] != "sim-001" for one in servers)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("nowhere",), "there is no compute host 'nowhere'"),
        (("sim-009", "--to", "nowhere"), "--to: there is no compute host 'nowhere'"),
        (("sim-009", "--to", "sim-009"), "--to: sim-009 is the host that is to be emptied"),
        (("sim-009", "--cloud", "kilonova-demo"), "Policy doesn't allow os_compute_api:os-services:list"),
    ],
)
def test_wrong_names_are_one_line(cloud: Cloud, operator: Operator, arguments: tuple[str, ...], words: str) -> None:
    refused = drain(cloud, *arguments)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert operator.service("sim-009")["status"] == "enabled"


def test_a_terminal_shows_how_far_it_is(cloud: Cloud, operator: Operator) -> None:
    for number in range(2):
        operator.boot(f"seen-{number}", "sim-008")
    shown = on_terminal(120, "host", "drain", "sim-008", *TO, "--data", str(cloud.data))
    assert re.search(r"sim-008.*━.*2/2", shown), shown
    assert "seen-1: live migration to sim-01" in shown
