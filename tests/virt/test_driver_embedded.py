"""`kilonova up --driver libvirt`: a whole cloud in a process with one real host, the machine it runs on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.process import KILONOVA, Client
from tests.support.virt_hosts import Host, Process, Site, site, until


class Machine:
    """A host with the whole cloud on it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.data = host.directory / "cloud"
        self.process: Process | None = None

    def up(self) -> None:
        (self.data / "endpoints.json").unlink(missing_ok=True)
        options = ["--driver", "libvirt", "--data", str(self.data), "--host", self.host.address, "--port", "8774"]
        before = self.output() if self.process is not None else ""
        self.process = self.host.run([KILONOVA, "up", *options], log="up")
        until(lambda: "clouds.yaml" in self.output()[len(before) :], "it says where its clouds.yaml is")

    def output(self) -> str:
        assert self.process is not None
        return self.process.out.read_text()

    def client(self) -> Client:
        endpoints = json.loads((self.data / "endpoints.json").read_text())
        clouds = yaml.safe_load((self.data / "clouds.yaml").read_text())["clouds"]
        return Client(endpoints, clouds["kilonova"], "2.96")

    def hypervisors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client().get("compute", "/os-hypervisors/detail").json()["hypervisors"]
        return found

    def image(self, path: Path) -> str:
        client = self.client()
        wanted = {"name": "micro", "disk_format": "raw", "container_format": "bare"}
        made: str = client.post("image", "/images", wanted).json()["id"]
        kind = {"Content-Type": "application/octet-stream"}
        stored = client.request("PUT", "image", f"/images/{made}/file", content=path.read_bytes(), headers=kind)
        assert stored.status == 204, stored.body
        return made

    def boot(self, image: str) -> str:
        flavor = {"name": "micro", "ram": 64, "vcpus": 1, "disk": 1}
        made = self.client().post("compute", "/flavors", {"flavor": flavor}).json()["flavor"]["id"]
        wanted = {"name": "web", "flavorRef": made, "imageRef": image, "networks": "auto"}
        answer = self.client().post("compute", "/servers", {"server": wanted})
        assert answer.status == 202, answer.body
        server: str = answer.json()["server"]["id"]
        return server

    def show(self, server: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client().get("compute", f"/servers/{server}").json()["server"]
        return shown

    def becomes(self, server: str, status: str, seconds: float = 300.0) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            shown = self.show(server)
            assert shown["status"] != "ERROR", shown.get("fault")
            return shown if shown["status"] == status and shown["OS-EXT-STS:task_state"] is None else None

        found: dict[str, Any] = until(look, f"{server} is {status}", seconds)
        return found

    def says(self, server: str, words: str) -> str:
        def look() -> str | None:
            answer = self.client().post("compute", f"/servers/{server}/action", {"os-getConsoleOutput": {}})
            output = str(answer.json().get("output", ""))
            return output if words in output else None

        found: str = until(look, words)
        return found


@pytest.fixture(scope="module")
def place() -> Iterator[Site]:
    with site() as made:
        yield made


def test_a_cloud_of_one_real_host(place: Site) -> None:
    machine = Machine(place.host("box"))
    machine.up()
    try:
        (found,) = until(machine.hypervisors, "its host is known")
        assert (found["hypervisor_hostname"], found["hypervisor_type"], found["state"]) == ("box", "QEMU", "up")

        server = machine.boot(machine.image(place.micro_image()))
        shown = machine.becomes(server, "ACTIVE")
        assert shown["OS-EXT-SRV-ATTR:host"] == "box"
        assert shown["addresses"]["private"]
        machine.says(server, "TICK 00001")

        # The guest goes on while the cloud is away, and is found again.
        assert machine.process is not None
        machine.process.kill(signal.SIGKILL)
        machine.up()
        assert machine.show(server)["status"] == "ACTIVE"
        assert machine.says(server, "TICK 00002").count("HELLO") == 1

        # What happens to it by itself is seen.
        machine.host.do("virsh", "destroy", f"kn-{server}")
        machine.becomes(server, "SHUTOFF")

        assert machine.client().delete("compute", f"/servers/{server}").status == 204
        until(lambda: machine.client().get("compute", f"/servers/{server}").status == 404, "it is gone")
        assert machine.host.domains() == {}
        assert not list((machine.data / "instances").glob(f"{server}*"))
        assert machine.process.stop() == 0
    finally:
        if machine.process is not None and machine.process.alive():
            machine.process.kill()
