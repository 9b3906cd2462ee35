"""Every way a server changes its host, by the stock client: one long session, a command at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import Client, Cloud, kilonova
from tests.support.session import PATIENCE, Session

HOST, ZONE = "OS-EXT-SRV-ATTR:host", "OS-EXT-AZ:availability_zone"
EAST, WEST = ("sim-001", "sim-003"), ("sim-002", "sim-004")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    directory = tmp_path_factory.mktemp("moves")
    # The client offloads what it sees SHELVED, too late if the cloud was about to do so.
    environ = {"KILONOVA_COMPUTE__SHELVED_OFFLOAD_SECONDS": "3600"}
    with Cloud(directory / "data", "--hosts", "4", "--zones", "east,west", environ=environ) as running:
        yield running


@pytest.fixture
def session(openstack: Path, cloud: Cloud, tmp_path: Path) -> Iterator[Session]:
    with Session(openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.104") as opened:
        yield opened


class Story:
    """One server, what is done to it, and how it is then."""

    def __init__(self, cloud: Cloud, session: Session) -> None:
        self.cloud = cloud
        self.session = session
        self.admin: Client = cloud.client("kilonova", version="2.104")
        self.id = self.admin.boot("web")
        self.wait("ACTIVE")

    def do(self, command: str, status: str) -> dict[str, Any]:
        """`{}` is the server."""
        before = len(self.actions())
        self.session.do(command.format(self.id))
        until = time.monotonic() + PATIENCE
        while len(self.actions()) == before:
            assert time.monotonic() < until, (command, self.session.complaints.read_text())
            time.sleep(0.02)
        return self.wait(status)

    def ask(self, command: str) -> Any:
        return self.session.ask(command.format(self.id))

    def wait(self, status: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
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

    def pin(self) -> str | None:
        shown: str | None = self.ask("server show {}")["pinned_availability_zone"]
        return shown

    def elsewhere(self) -> str:
        here = self.wait("ACTIVE")[HOST]
        return next(host for host in (*EAST, *WEST) if host != here)


def test_a_server_is_moved_in_every_way(cloud: Cloud, session: Session) -> None:
    story = Story(cloud, session)
    shelve(story)
    pins(story)
    resize(story)
    migrate(story)
    live = migrate_live(story)
    evacuate(story)
    told = [(each["Type"], each["Status"]) for each in story.ask("server migration list --server {}")]
    cold = [("migration", "confirmed"), ("migration", "reverted"), ("resize", "confirmed"), ("resize", "reverted")]
    assert told == [("evacuation", "completed"), *live, *cold]
    hosts = story.ask("hypervisor list")
    assert [(each["Hypervisor Hostname"], each["State"]) for each in hosts] == [
        (host, "up") for host in sorted((*EAST, *WEST))
    ]
    assert session.end() == ""


def shelve(story: Story) -> None:
    offload(story)
    assert story.do("server unshelve --host sim-003 {}", "ACTIVE")[HOST] == "sim-003"
    story.do("server shelve --offload {}", "SHELVED_OFFLOADED")
    back = story.do("server unshelve --availability-zone west {}", "ACTIVE")
    assert back[HOST] in WEST
    assert back["pinned_availability_zone"] == "west"
    offload(story)
    both = story.do("server unshelve --availability-zone east --host sim-001 {}", "ACTIVE")
    assert (both[HOST], both["pinned_availability_zone"]) == ("sim-001", "east")
    offload(story)
    assert story.do("server unshelve --no-availability-zone {}", "ACTIVE")["pinned_availability_zone"] is None


def offload(story: Story) -> None:
    """The client waits five seconds at a time where it is to do both."""
    story.do("server shelve {}", "SHELVED")
    answer = story.admin.post("compute", f"/servers/{story.id}/action", {"shelveOffload": None})
    assert answer.status == 202, answer.body
    story.wait("SHELVED_OFFLOADED")


def pins(story: Story) -> None:
    zone = story.wait("ACTIVE")[ZONE]
    story.session.do(f"server set --pinned-availability-zone {zone} {story.id}")
    assert story.pin() == zone
    story.session.do(f"server unset --pinned-availability-zone {story.id}")
    assert story.pin() is None


def resize(story: Story) -> None:
    story.do("server resize --flavor m1.small {}", "VERIFY_RESIZE")
    assert story.do("server resize revert {}", "ACTIVE")["flavor"]["original_name"] == "m1.tiny"
    story.do("server resize --flavor m1.small {}", "VERIFY_RESIZE")
    assert story.do("server resize confirm {}", "ACTIVE")["flavor"]["original_name"] == "m1.small"


def migrate(story: Story) -> None:
    before = story.wait("ACTIVE")[HOST]
    story.do("server migrate {}", "VERIFY_RESIZE")
    assert story.do("server migration revert {}", "ACTIVE")[HOST] == before
    chosen = story.elsewhere()
    story.do(f"server migrate --host {chosen} {{}}", "VERIFY_RESIZE")
    assert story.do("server migration confirm {}", "ACTIVE")[HOST] == chosen


def migrate_live(story: Story) -> list[tuple[str, str]]:
    chosen = story.elsewhere()
    assert story.do(f"server migrate --live-migration --host {chosen} {{}}", "ACTIVE")[HOST] == chosen
    assert story.do("server migrate --live-migration {}", "ACTIVE")[HOST] != chosen
    slow(story.cloud, 600)
    before = story.wait("ACTIVE")[HOST]
    story.session.do(f"server migrate --live-migration {story.id}")
    story.session.do(f"server migration abort {story.id} {under_way(story)}")
    assert story.wait("ACTIVE")[HOST] == before
    story.session.do(f"server migrate --live-migration {story.id}")
    story.session.do(f"server migration force complete {story.id} {under_way(story)}")
    assert story.wait("ACTIVE")[HOST] != before
    slow(story.cloud, 0)
    return [("live-migration", status) for status in ("completed", "cancelled", "completed", "completed")]


def under_way(story: Story) -> int:
    """The number of the migration that runs."""
    until = time.monotonic() + PATIENCE
    while not (found := story.ask("server migration list --server {} --status running")):
        assert time.monotonic() < until, story.session.complaints.read_text()
    # By its number this release of the client asks for the server of the migration's number.
    shown = story.ask(f"server migration show {{}} {found[0]['UUID']}")
    assert (shown["ID"], shown["Status"], shown["Server UUID"]) == (found[0]["Id"], "running", story.id)
    return int(shown["ID"])


def slow(cloud: Cloud, seconds: float) -> None:
    """How long the hosts take for a live migration."""
    told = ("sim", "latency", "--step", "migrate_live", "--seconds", str(seconds), "--data", str(cloud.data))
    assert kilonova(*told).returncode == 0


def evacuate(story: Story) -> None:
    before = story.wait("ACTIVE")[HOST]
    story.session.do(f"compute service set --down {before} nova-compute")
    chosen = story.elsewhere()
    story.ask(f"server evacuate --host {chosen} {{}}")
    assert story.wait("SHUTOFF")[HOST] == chosen, "from 2.95 it is left stopped"
    until = time.monotonic() + PATIENCE
    while [each["Status"] for each in story.ask("server migration list --server {} --type evacuation")] != [
        "completed"
    ]:
        assert time.monotonic() < until
    story.session.do(f"compute service set --up {before} nova-compute")
    assert [each["State"] for each in story.ask(f"compute service list --host {before}")] == ["up"]
