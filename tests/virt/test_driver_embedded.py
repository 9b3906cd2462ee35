"""`kilonova up --driver libvirt`: a cloud in one process, with this machine as its host."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cloud_process import KILONOVA, Client
from tests.support.virt_hosts import Host, Process, Site, temporary_site, wait_until


class EmbeddedCloud:
    """A host that runs a cloud in one process, with itself as the only compute host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.data = host.directory / "cloud"
        self.process: Process | None = None

    def start(self, env: dict[str, str] | None = None) -> None:
        (self.data / "endpoints.json").unlink(missing_ok=True)
        options = [
            "--driver",
            "libvirt",
            "--data",
            str(self.data),
            "--host",
            self.host.address,
            "--port",
            "8774",
            "--tls",
        ]
        before = self.output() if self.process is not None else ""
        self.process = self.host.start_process([KILONOVA, "up", *options], env, log="up")
        wait_until(lambda: "clouds.yaml" in self.output()[len(before) :], "the process prints the path of clouds.yaml")

    def output(self) -> str:
        assert self.process is not None
        return self.process.output_file.read_text()

    def client(self) -> Client:
        endpoints = json.loads((self.data / "endpoints.json").read_text())
        clouds = yaml.safe_load((self.data / "clouds.yaml").read_text())["clouds"]
        return Client(endpoints, clouds["kilonova"], "2.96")

    def hypervisors(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client().get("compute", "/os-hypervisors/detail").json()["hypervisors"]
        return found

    def image(self, path: Path, disk_format: str = "raw") -> str:
        client = self.client()
        body = {"name": path.stem, "disk_format": disk_format, "container_format": "bare"}
        image_id: str = client.post("image", "/images", body).json()["id"]
        headers = {"Content-Type": "application/octet-stream"}
        answer = client.request("PUT", "image", f"/images/{image_id}/file", content=path.read_bytes(), headers=headers)
        assert answer.status == 204, answer.body
        return image_id

    def boot(self, image: str, ram: int = 64, **keys: Any) -> str:
        flavor = {"name": f"micro-{ram}", "ram": ram, "vcpus": 1, "disk": 1}
        flavor_id = self.client().post("compute", "/flavors", {"flavor": flavor}).json()["flavor"]["id"]
        body = {"name": "web", "flavorRef": flavor_id, "imageRef": image, "networks": "auto", **keys}
        answer = self.client().post("compute", "/servers", {"server": body})
        assert answer.status == 202, answer.body
        server: str = answer.json()["server"]["id"]
        return server

    def show(self, server: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.client().get("compute", f"/servers/{server}").json()["server"]
        return shown

    def wait_for_status(self, server: str, status: str, seconds: float = 300.0) -> dict[str, Any]:
        def show_if_reached() -> dict[str, Any] | None:
            shown = self.show(server)
            assert shown["status"] != "ERROR", shown.get("fault")
            return shown if shown["status"] == status and shown["OS-EXT-STS:task_state"] is None else None

        found: dict[str, Any] = wait_until(show_if_reached, f"server {server} is {status}", seconds)
        return found

    def wait_for_output(self, server: str, text: str) -> str:
        """Wait until the server's console contains the text, and return its output."""

        def read_if_printed() -> str | None:
            answer = self.client().post("compute", f"/servers/{server}/action", {"os-getConsoleOutput": {}})
            output = str(answer.json().get("output", ""))
            return output if text in output else None

        found: str = wait_until(read_if_printed, f"the console contains {text}")
        return found


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with temporary_site() as created:
        yield created


# Loaded by every Python process. Query number N for capabilities is recorded, and waits for the file `answer-N`.
SLOW_LIBVIRT = """
import os, pathlib, time
import libvirt

directory = pathlib.Path(os.environ["SLOW_LIBVIRT"])
ask = libvirt.virConnect.getCapabilities

def ask_slowly(connection):
    with (directory / "queries").open("a+") as file:
        file.write("query\\n")
        file.seek(0)
        number = len(file.readlines())
    while not (directory / f"answer-{number}").exists():
        time.sleep(0.05)
    return ask(connection)

libvirt.virConnect.getCapabilities = ask_slowly
"""


def test_host_with_slow_libvirt_is_registered_when_libvirt_answers(site: Site, tmp_path: Path) -> None:
    cloud = EmbeddedCloud(site.host("slow"))
    (tmp_path / "sitecustomize.py").write_text(SLOW_LIBVIRT)
    env = {"PYTHONPATH": str(tmp_path), "SLOW_LIBVIRT": str(tmp_path)}

    def wait_for_line(text: str) -> None:
        wait_until(lambda: cloud.process is not None and text in cloud.output(), f"{text!r} is printed")

    with ThreadPoolExecutor() as threads:
        starting = threads.submit(cloud.start, env)
        try:
            wait_for_line("note        libvirt at qemu:///system is slow to respond; waiting for it")
            # The start checks libvirt by a connection of its own.
            (tmp_path / "answer-1").touch()
            wait_for_line(
                "host        slow is not registered yet: libvirt at qemu:///system has not listed its capabilities"
            )
            starting.result()
            assert cloud.hypervisors() == []
            (tmp_path / "answer-2").touch()
            wait_for_line("host        slow is registered")
            (found,) = cloud.hypervisors()
            assert (found["hypervisor_hostname"], found["state"]) == ("slow", "up")
            assert (tmp_path / "queries").read_text() == "query\n" * 2
            assert cloud.process is not None
            assert cloud.process.stop() == 0
        finally:
            for number in (1, 2):
                (tmp_path / f"answer-{number}").touch()
            if cloud.process is not None and cloud.process.alive():
                cloud.process.kill()


def test_cloud_with_embedded_host(site: Site) -> None:
    cloud = EmbeddedCloud(site.host("box"))
    cloud.start()
    try:
        (found,) = wait_until(cloud.hypervisors, "the host is registered")
        assert (found["hypervisor_hostname"], found["hypervisor_type"], found["state"]) == ("box", "QEMU", "up")

        server = cloud.boot(cloud.image(site.micro_image()))
        shown = cloud.wait_for_status(server, "ACTIVE")
        assert shown["OS-EXT-SRV-ATTR:host"] == "box"
        assert shown["addresses"]["private"]
        cloud.wait_for_output(server, "TICK 00001")

        # The guest runs while the cloud is stopped, and the restarted cloud finds it.
        assert cloud.process is not None
        cloud.process.kill(signal.SIGKILL)
        cloud.start()
        assert cloud.show(server)["status"] == "ACTIVE"
        assert cloud.wait_for_output(server, "TICK 00002").count("HELLO") == 1

        # The cloud sees that the guest was powered off.
        cloud.host.execute("virsh", "destroy", f"kn-{server}")
        cloud.wait_for_status(server, "SHUTOFF")

        assert cloud.client().delete("compute", f"/servers/{server}").status == 204
        wait_until(lambda: cloud.client().get("compute", f"/servers/{server}").status == 404, "the server is deleted")
        assert cloud.host.domains() == {}
        assert not list((cloud.data / "instances").glob(f"{server}*"))
        assert cloud.process.stop() == 0
    finally:
        if cloud.process is not None and cloud.process.alive():
            cloud.process.kill()
