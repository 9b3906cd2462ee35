"""What is said of a server, its interfaces, its groups and its console, by the stock client: a command at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support.process import Cloud
from tests.support.session import PATIENCE, Session


class Story:
    def __init__(self, cloud: Cloud, session: Session) -> None:
        self.session = session
        self.client = cloud.client("kilonova", version="2.100")
        self.server = self.client.boot("web")
        self.until(lambda: self.show()["status"] == "ACTIVE")

    def until(self, holds: Any) -> None:
        limit = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < limit, self.session.complaints.read_text()
            time.sleep(0.02)

    def show(self) -> Any:
        return self.client.get("compute", f"/servers/{self.server}").json()["server"]

    def do(self, command: str) -> None:
        self.session.do(command.format(self.server))

    def ask(self, command: str) -> Any:
        return self.session.ask(command.format(self.server))

    def addresses(self) -> set[str]:
        return {entry["addr"] for entries in self.show()["addresses"].values() for entry in entries}


def test_what_is_said_of_a_server(openstack: Path, tmp_path: Path) -> None:
    with Cloud(tmp_path / "data", "--hosts", "1") as cloud:
        with Session(openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.96") as session:
            story = Story(cloud, session)
            words(story)
            interfaces(story)
            groups(story)
            console(story)
            (complaint,) = session.end().splitlines()
            assert "Unavailable console type novnc." in complaint
        (tmp_path / "old").mkdir()
        with Session(openstack, cloud, tmp_path / "old", OS_COMPUTE_API_VERSION="2.43") as story.session:
            old_addresses(story)
            assert story.session.end() == ""


def words(story: Story) -> None:
    story.do("server set --property color=red --property size=9 --tag web --tag blue {}")
    story.until(lambda: story.show()["tags"] == ["blue", "web"])
    assert story.ask("server show {}")["properties"] == {"color": "red", "size": "9"}
    assert [each["ID"] for each in story.ask("server list --tags web,blue")] == [story.server]
    assert story.ask("server list --not-tags web") == []
    story.do("server unset --property size --tag blue {}")
    story.until(lambda: story.show()["tags"] == ["web"])
    assert story.show()["metadata"] == {"color": "red"}


def interfaces(story: Story) -> None:
    before = story.addresses()
    story.ask("network create second")
    story.ask("subnet create --network second --subnet-range 10.9.0.0/24 second")
    story.do("server add network {} second")
    story.until(lambda: len(story.addresses()) == len(before) + 1)
    fixed = story.ask("server add fixed ip --fixed-ip-address 10.9.0.77 {} second")
    assert "10.9.0.77" in str(fixed)
    assert "10.9.0.77" in story.addresses()
    story.ask("port create --network second --fixed-ip ip-address=10.9.0.99 own")
    story.do("server add port --tag mine {} own")
    story.until(lambda: "10.9.0.99" in story.addresses())
    story.do("server remove port {} own")
    story.until(lambda: "10.9.0.99" not in story.addresses())
    assert story.ask("port show own")["device_id"] == ""
    story.do("server remove network {} second")
    story.until(lambda: story.addresses() == before)


def old_addresses(story: Story) -> None:
    """By actions that newer versions do not have."""
    (first,) = story.addresses()
    (network,) = story.show()["addresses"]
    story.do(f"server add fixed ip {{}} {network}")
    story.until(lambda: len(story.addresses()) == 2)
    story.do(f"server remove fixed ip {{}} {first}")
    story.until(lambda: first not in story.addresses())


def groups(story: Story) -> None:
    story.ask("security group create web")
    story.do("server add security group {} web")
    named = {"name": "web"}
    story.until(lambda: named in story.show()["security_groups"])
    story.do("server remove security group {} web")
    story.until(lambda: named not in story.show()["security_groups"])


def console(story: Story) -> None:
    wrote = f"boot 1 of {story.server}"
    story.do("console log show --lines 5 {}")
    story.until(lambda: wrote in story.session.output.read_text())
    story.do("console url show --novnc {}")
