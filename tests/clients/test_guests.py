"""Metadata, interfaces, security groups and consoles of a server, with the stock client."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support.cloud_process import CloudProcess
from tests.support.openstack_session import TIMEOUT_SECONDS, OpenstackSession


class Scenario:
    def __init__(self, cloud: CloudProcess, session: OpenstackSession) -> None:
        self.session = session
        self.client = cloud.client("kilonova", version="2.100")
        self.server = self.client.boot("web")
        self.wait_until(lambda: self.show()["status"] == "ACTIVE")

    def wait_until(self, condition: Any) -> None:
        until = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < until, self.session.errors.read_text()
            time.sleep(0.02)

    def show(self) -> Any:
        return self.client.get("compute", f"/servers/{self.server}").json()["server"]

    def send(self, command: str) -> None:
        self.session.send(command.format(self.server))

    def run_json(self, command: str) -> Any:
        return self.session.run_json(command.format(self.server))

    def addresses(self) -> set[str]:
        return {entry["addr"] for entries in self.show()["addresses"].values() for entry in entries}


def test_server_details(openstack: Path, tmp_path: Path) -> None:
    with CloudProcess(tmp_path / "data", "--hosts", "1") as cloud:
        with OpenstackSession(openstack, cloud, tmp_path, OS_COMPUTE_API_VERSION="2.96") as session:
            scenario = Scenario(cloud, session)
            check_metadata_and_tags(scenario)
            check_interfaces(scenario)
            check_security_groups(scenario)
            check_console(scenario)
            assert session.close() == ""
        (tmp_path / "old").mkdir()
        with OpenstackSession(openstack, cloud, tmp_path / "old", OS_COMPUTE_API_VERSION="2.43") as scenario.session:
            check_fixed_ip_actions(scenario)
            assert scenario.session.close() == ""


def check_metadata_and_tags(scenario: Scenario) -> None:
    scenario.send("server set --property color=red --property size=9 --tag web --tag blue {}")
    scenario.wait_until(lambda: scenario.show()["tags"] == ["blue", "web"])
    assert scenario.run_json("server show {}")["properties"] == {"color": "red", "size": "9"}
    assert [each["ID"] for each in scenario.run_json("server list --tags web,blue")] == [scenario.server]
    assert scenario.run_json("server list --not-tags web") == []
    scenario.send("server unset --property size --tag blue {}")
    scenario.wait_until(lambda: scenario.show()["tags"] == ["web"])
    assert scenario.show()["metadata"] == {"color": "red"}


def check_interfaces(scenario: Scenario) -> None:
    before = scenario.addresses()
    scenario.run_json("network create second")
    scenario.run_json("subnet create --network second --subnet-range 10.9.0.0/24 second")
    scenario.send("server add network {} second")
    scenario.wait_until(lambda: len(scenario.addresses()) == len(before) + 1)
    fixed = scenario.run_json("server add fixed ip --fixed-ip-address 10.9.0.77 {} second")
    assert "10.9.0.77" in str(fixed)
    assert "10.9.0.77" in scenario.addresses()
    scenario.run_json("port create --network second --fixed-ip ip-address=10.9.0.99 own")
    scenario.send("server add port --tag mine {} own")
    scenario.wait_until(lambda: "10.9.0.99" in scenario.addresses())
    scenario.send("server remove port {} own")
    scenario.wait_until(lambda: "10.9.0.99" not in scenario.addresses())
    assert scenario.run_json("port show own")["device_id"] == ""
    scenario.send("server remove network {} second")
    scenario.wait_until(lambda: scenario.addresses() == before)


def check_fixed_ip_actions(scenario: Scenario) -> None:
    """Uses actions that newer microversions lack."""
    (first,) = scenario.addresses()
    (network,) = scenario.show()["addresses"]
    scenario.send(f"server add fixed ip {{}} {network}")
    scenario.wait_until(lambda: len(scenario.addresses()) == 2)
    scenario.send(f"server remove fixed ip {{}} {first}")
    scenario.wait_until(lambda: first not in scenario.addresses())


def check_security_groups(scenario: Scenario) -> None:
    scenario.run_json("security group create web")
    scenario.send("server add security group {} web")
    group = {"name": "web"}
    scenario.wait_until(lambda: group in scenario.show()["security_groups"])
    scenario.send("server remove security group {} web")
    scenario.wait_until(lambda: group not in scenario.show()["security_groups"])


def check_console(scenario: Scenario) -> None:
    first_line = f"boot 1 of {scenario.server}"
    scenario.send("console log show --lines 5 {}")
    scenario.wait_until(lambda: first_line in scenario.session.output.read_text())
    shown = scenario.run_json("console url show --novnc {}")
    assert (shown["protocol"], shown["type"]) == ("vnc", "novnc")
    assert "token" in shown["url"]
