"""Kill a real service, or Kilonova, in the middle of many different operations: all of them end, nothing is left."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.kilonova_process import Kilonova, server_body, wait_for
from tests.support.cloud_process import Client, Response

TASK = "OS-EXT-STS:task_state"
# Where the operations of this module leave servers. A request that was refused leaves its server as it was.
SETTLED = {"ACTIVE", "VERIFY_RESIZE", "SHELVED", "SHELVED_OFFLOADED"}


class Load:
    """`count` operations on servers of its own, of eight kinds."""

    def __init__(self, kilonova: Kilonova, count: int) -> None:
        self.kilonova = kilonova
        self.count = count
        self.admin = kilonova.admin
        images = {image["name"]: image for image in self.admin.get("image", "/images").json()["images"]}
        self.image, self.other_image = images["tiny"], images["other"]
        self.network = self.admin.get("network", "/networks?name=shared").json()["networks"][0]
        self.servers: list[str] = []
        self.volumes: list[str] = []

    def prepare(self) -> None:
        """Boot the servers, and create the volumes."""
        body = server_body(self.image, self.network, min_count=self.count, max_count=self.count)
        assert self.admin.post("compute", "/servers", body).status == 202
        for _ in range(self.count // 8 + 1):
            volume = self.admin.post("volume", "/volumes", {"volume": {"size": 1}})
            self.volumes.append(volume.json()["volume"]["id"])
        wait_for(lambda: all(server["status"] == "ACTIVE" for server in self.shown()), "all servers are ACTIVE")
        self.servers = [server["id"] for server in self.shown()]
        wait_for(lambda: {volume["status"] for volume in self.shown_volumes()} == {"available"}, "volumes are there")

    def shown(self) -> list[dict[str, Any]]:
        servers: list[dict[str, Any]] = self.admin.get("compute", "/servers/detail").json()["servers"]
        return servers

    def shown_volumes(self) -> list[dict[str, Any]]:
        every: list[dict[str, Any]] = self.admin.get("volume", "/volumes/detail").json()["volumes"]
        return [volume for volume in every if volume["id"] in self.volumes]

    def requests(self, client: Client) -> Iterator[Response]:
        """Send the requests, one for each server."""
        volumes = iter(self.volumes)

        def act(server_id: str, **action: Any) -> Response:
            return client.post("compute", f"/servers/{server_id}/action", action, version="2.93")

        def attach(server_id: str) -> Response:
            body = {"volumeAttachment": {"volumeId": next(volumes)}}
            return client.post("compute", f"/servers/{server_id}/os-volume_attachments", body)

        def boot(server_id: str) -> Response:
            return client.post("compute", "/servers", server_body(self.image, self.network, name="new"))

        kinds = (
            lambda server_id: act(server_id, shelve=None),
            attach,
            lambda server_id: act(server_id, **{"os-migrateLive": {"host": None, "block_migration": "auto"}}),
            lambda server_id: act(server_id, createImage={"name": f"copy of {server_id}"}),
            boot,
            lambda server_id: act(server_id, resize={"flavorRef": "2"}),
            lambda server_id: client.delete("compute", f"/servers/{server_id}"),
            lambda server_id: act(server_id, rebuild={"imageRef": self.other_image["id"]}),
        )
        for server_id, send in zip(self.servers, itertools.cycle(kinds), strict=False):
            yield send(server_id)

    def check_settled(self) -> None:
        """Wait until every operation has ended. No server is in ERROR, and none has a task."""
        self.kilonova.wait_until_idle(600)
        wrong = [server for server in self.shown() if server["status"] not in SETTLED or server[TASK]]
        assert not wrong, [(server["id"], server["status"], server.get("fault")) for server in wrong]

    def clean_up(self) -> None:
        self.kilonova.delete_servers(600)
        for image in self.admin.get("image", "/images?limit=1000").json()["images"]:
            if image["name"].startswith("copy of "):
                self.admin.delete("image", f"/images/{image['id']}")
        for volume_id in self.volumes:
            assert self.admin.delete("volume", f"/volumes/{volume_id}").status == 202


@pytest.mark.parametrize("count", [16, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("service", ["keystone", "glance", "neutron", "cinder"])
def test_operations_survive_a_killed_service(kilonova: Kilonova, cloud: Cloud, service: str, count: int) -> None:
    load = Load(kilonova, count)
    load.prepare()
    client = kilonova.admin
    assert client.token
    statuses = []
    with ThreadPoolExecutor(1) as executor:
        for number, answer in enumerate(load.requests(client)):
            statuses.append(answer.status)
            if number == count // 2:
                cloud.kill(service)
                restarted = executor.submit(cloud.restart, service)
        restarted.result()
    # A request that needs the killed service may be refused, and then changes nothing.
    assert set(statuses) <= {200, 202, 204, 503}, statuses
    load.check_settled()
    assert kilonova.doctor() == []
    load.clean_up()
    assert kilonova.leftovers() == []
    assert kilonova.doctor() == []


def test_operations_survive_a_killed_kilonova(kilonova: Kilonova) -> None:
    load = Load(kilonova, 16)
    load.prepare()
    for answer in load.requests(kilonova.admin):
        assert answer.status in (200, 202, 204), answer.body
    for _ in range(2):
        kilonova.kill()
        kilonova.start()
    load.check_settled()
    assert kilonova.doctor() == []
    load.clean_up()
    assert kilonova.leftovers() == []
