"""Concurrent clients change the same few resources at random: lost races are 4xx, no request is a 500, no operation
fails unexpectedly, and the doctor finds nothing afterwards."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.support import EXAMPLES_FACTOR, SEED, TIMEOUT_SECONDS, fuzzed_cloud, new_database
from tests.support.cloud_process import Client, CloudProcess, Response

CLIENTS = 8
REQUESTS = 150  # of each client
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"


class RandomClient:
    """A client. All clients change and delete each other's resources."""

    def __init__(
        self, cloud: CloudProcess, token: str, project_id: str, created: dict[str, list[str]], number: int
    ) -> None:
        self.client = Client(cloud.endpoints, cloud.clouds["kilonova"])
        self.client._token, self.client._project_id = token, project_id
        self.created = created
        self.random = random.Random(SEED * 1000 + number)
        self.statuses: Counter[int] = Counter()
        self.error: BaseException | None = None

    def run(self, enough: Callable[[], bool]) -> None:
        try:
            while self.statuses.total() < REQUESTS * EXAMPLES_FACTOR or not enough():
                answer = self.random.choice(ACTIONS)(self)
                self.statuses[answer.status] += 1
        except BaseException as error:
            self.error = error

    def random_id(self, noun: str) -> str:
        return self.random.choice(self.created[noun]) if self.created[noun] else "none"

    def random_name(self, letter: str) -> str:
        return f"{letter}{self.random.randrange(3)}"

    def make(self, service: str, path: str, body: Any, noun: str, *keys: str) -> Response:
        answer = self.client.post(service, path, body, version="2.37" if service == "compute" else None)
        if answer.status < 300:
            shown = answer.json()
            for key in keys:
                shown = shown[key]
            self.created[noun].append(shown["id"])
        return answer

    def boot(self) -> Response:
        port: Any = [{"port": self.random_id("port")}] if self.created["port"] else "none"
        networks = self.random.choice(["none", "auto", [{"uuid": self.random_id("network")}], port])
        server = {"name": "s", "flavorRef": "1", "imageRef": self.random_id("boot image"), "networks": networks}
        return self.make("compute", "/servers", {"server": server}, "server", "server")

    def act(self) -> Response:
        hard, soft = ({"reboot": {"type": kind}} for kind in ("HARD", "SOFT"))
        action = self.random.choice([{"os-stop": None}, {"os-start": None}, hard, soft])
        return self.client.post("compute", f"/servers/{self.random_id('server')}/action", action)

    def flavor(self) -> Response:
        flavor = {"name": self.random_name("f"), "id": self.random_name("f"), "ram": 1, "vcpus": 1, "disk": 1}
        return self.client.post("compute", "/flavors", {"flavor": flavor})

    def specs(self) -> Response:
        body = {"extra_specs": {self.random_name("a"): "b"}}
        return self.client.post("compute", f"/flavors/{self.random_name('f')}/os-extra_specs", body)

    def delete_unused_port(self) -> Response:
        """Ports in use are not deleted, because their servers need them."""
        unused = self.client.get("network", "/ports?device_id=").json()["ports"]
        port = self.random.choice(unused)["id"] if unused else "none"
        return self.client.delete("network", f"/ports/{port}")

    def subnet(self) -> Response:
        cidr = f"10.{self.random.randrange(50, 53)}.0.0/24"
        body = {"subnet": {"network_id": self.random_id("network"), "ip_version": 4, "cidr": cidr}}
        return self.make("network", "/subnets", body, "subnet", "subnet")

    def interface(self, what: str) -> Response:
        path = f"/routers/{self.random_id('router')}/{what}_router_interface"
        return self.client.put("network", path, {"subnet_id": self.random_id("subnet")})

    def floating_ip(self) -> Response:
        body = {"floatingip": {"floating_network_id": self.random_id("outside")}}
        return self.make("network", "/floatingips", body, "floatingip", "floatingip")

    def rule(self) -> Response:
        ends = {"security_group_id": self.random_id("group"), "remote_group_id": self.random_id("group")}
        body = {"security_group_rule": {**ends, "direction": "ingress"}}
        return self.client.post("network", "/security-group-rules", body)

    def project(self) -> Response:
        return self.make("identity", "/projects", {"project": {"name": self.random_name("p")}}, "project", "project")


def deletes(service: str, path: str, noun: str) -> Callable[[RandomClient], Response]:
    return lambda s: s.client.delete(service, f"{path}/{s.random_id(noun)}")


ACTIONS: list[Callable[[RandomClient], Response]] = [
    RandomClient.boot,
    RandomClient.boot,
    RandomClient.act,
    deletes("compute", "/servers", "server"),
    lambda s: s.client.put("compute", f"/servers/{s.random_id('server')}", {"server": {"name": s.random_name("n")}}),
    lambda s: s.client.get("compute", "/servers/detail?limit=5"),
    RandomClient.flavor,
    RandomClient.specs,
    lambda s: s.client.delete("compute", f"/flavors/{s.random_name('f')}"),
    lambda s: s.client.delete("compute", f"/flavors/{s.random_name('f')}/os-extra_specs/{s.random_name('a')}"),
    lambda s: s.client.post(
        "compute", "/os-keypairs", {"keypair": {"name": s.random_name("k"), "public_key": PUBLIC_KEY}}
    ),
    lambda s: s.client.delete("compute", f"/os-keypairs/{s.random_name('k')}"),
    lambda s: s.client.put("compute", f"/os-quota-sets/{s.client.project_id}", {"quota_set": {"instances": -1}}),
    lambda s: s.client.delete("compute", f"/os-quota-sets/{s.client.project_id}"),
    lambda s: s.make("network", "/networks", {"network": {"name": "n"}}, "network", "network"),
    deletes("network", "/networks", "network"),
    RandomClient.subnet,
    deletes("network", "/subnets", "subnet"),
    lambda s: s.make("network", "/ports", {"port": {"network_id": s.random_id("network")}}, "port", "port"),
    lambda s: s.client.put(
        "network", f"/ports/{s.random_id('port')}", {"port": {"security_groups": [s.random_id("group")]}}
    ),
    RandomClient.delete_unused_port,
    lambda s: s.make("network", "/routers", {"router": {"name": "r"}}, "router", "router"),
    deletes("network", "/routers", "router"),
    lambda s: s.interface("add"),
    lambda s: s.interface("remove"),
    RandomClient.floating_ip,
    lambda s: s.client.put(
        "network", f"/floatingips/{s.random_id('floatingip')}", {"floatingip": {"port_id": s.random_id("port")}}
    ),
    deletes("network", "/floatingips", "floatingip"),
    lambda s: s.make("network", "/security-groups", {"security_group": {"name": "g"}}, "group", "security_group"),
    deletes("network", "/security-groups", "group"),
    RandomClient.rule,
    lambda s: s.client.get("network", f"/auto-allocated-topology/{s.client.project_id}"),
    lambda s: s.client.delete("network", f"/auto-allocated-topology/{s.client.project_id}"),
    lambda s: s.make("image", "/images", {"disk_format": "raw", "container_format": "bare"}, "image"),
    lambda s: s.client.request("PUT", "image", f"/images/{s.random_id('image')}/file", content=b"x" * 1000),
    lambda s: s.client.put("image", f"/images/{s.random_id('image')}/tags/{s.random_name('t')}", {}),
    lambda s: s.client.post("image", f"/images/{s.random_id('image')}/members", {"member": s.random_name("m")}),
    deletes("image", "/images", "image"),
    RandomClient.project,
    deletes("identity", "/projects", "project"),
]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_concurrent_clients(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> None:
    url = new_database(request.getfixturevalue("postgresql_server")) if database == "postgresql" else ""
    with fuzzed_cloud(tmp_path / "data", url) as cloud:
        admin = cloud.client("kilonova")
        created: dict[str, list[str]] = defaultdict(list)
        created["boot image"] = [admin.get("image", "/images").json()["images"][0]["id"]]
        created["outside"] = [admin.get("network", "/networks?router:external=True").json()["networks"][0]["id"]]
        clients = [RandomClient(cloud, admin.token, admin.project_id, created, number) for number in range(CLIENTS)]
        deadline = time.monotonic() + TIMEOUT_SECONDS

        def enough() -> bool:
            return sum(each.statuses[202] for each in clients) > 10 or time.monotonic() > deadline

        threads = [threading.Thread(target=client.run, args=(enough,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [client.error for client in clients if client.error] == []
        statuses = sum((client.statuses for client in clients), Counter[int]())
        assert statuses.keys() <= {200, 201, 202, 204, 400, 403, 404, 409, 410, 412}, statuses
        assert statuses[202] > 10, statuses
