"""Many clients at once do at random what they like to the same few things: whoever loses a race is told so, no request
is a 500, no operation fails unexpectedly, and afterwards everything agrees."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.support import MORE, PATIENCE, SEED, new_database, victim
from tests.support.process import Client, Cloud, Response

CLIENTS = 8
REQUESTS = 150  # of each client
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@here"


class Stranger:
    """One client. What any of them makes is everybody's to change and delete."""

    def __init__(self, cloud: Cloud, token: str, project_id: str, made: dict[str, list[str]], number: int) -> None:
        self.client = Client(cloud.endpoints, cloud.clouds["kilonova"])
        self.client._token, self.client._project_id = token, project_id
        self.made = made
        self.random = random.Random(SEED * 1000 + number)
        self.statuses: Counter[int] = Counter()
        self.trouble: BaseException | None = None

    def run(self, enough: Callable[[], bool]) -> None:
        try:
            while self.statuses.total() < REQUESTS * MORE or not enough():
                answer = self.random.choice(ACTS)(self)
                self.statuses[answer.status] += 1
        except BaseException as error:
            self.trouble = error

    def any(self, noun: str) -> str:
        return self.random.choice(self.made[noun]) if self.made[noun] else "none"

    def few(self, letter: str) -> str:
        return f"{letter}{self.random.randrange(3)}"

    def make(self, service: str, path: str, body: Any, noun: str, *keys: str) -> Response:
        answer = self.client.post(service, path, body, version="2.37" if service == "compute" else None)
        if answer.status < 300:
            shown = answer.json()
            for key in keys:
                shown = shown[key]
            self.made[noun].append(shown["id"])
        return answer

    def boot(self) -> Response:
        port: Any = [{"port": self.any("port")}] if self.made["port"] else "none"
        networks = self.random.choice(["none", "auto", [{"uuid": self.any("network")}], port])
        server = {"name": "s", "flavorRef": "1", "imageRef": self.any("boot image"), "networks": networks}
        return self.make("compute", "/servers", {"server": server}, "server", "server")

    def act(self) -> Response:
        hard, soft = ({"reboot": {"type": kind}} for kind in ("HARD", "SOFT"))
        action = self.random.choice([{"os-stop": None}, {"os-start": None}, hard, soft])
        return self.client.post("compute", f"/servers/{self.any('server')}/action", action)

    def flavor(self) -> Response:
        flavor = {"name": self.few("f"), "id": self.few("f"), "ram": 1, "vcpus": 1, "disk": 1}
        return self.client.post("compute", "/flavors", {"flavor": flavor})

    def specs(self) -> Response:
        body = {"extra_specs": {self.few("a"): "b"}}
        return self.client.post("compute", f"/flavors/{self.few('f')}/os-extra_specs", body)

    def delete_unused_port(self) -> Response:
        """One that a server uses is the server's: it would miss it."""
        unused = self.client.get("network", "/ports?device_id=").json()["ports"]
        port = self.random.choice(unused)["id"] if unused else "none"
        return self.client.delete("network", f"/ports/{port}")

    def subnet(self) -> Response:
        cidr = f"10.{self.random.randrange(50, 53)}.0.0/24"
        body = {"subnet": {"network_id": self.any("network"), "ip_version": 4, "cidr": cidr}}
        return self.make("network", "/subnets", body, "subnet", "subnet")

    def interface(self, what: str) -> Response:
        path = f"/routers/{self.any('router')}/{what}_router_interface"
        return self.client.put("network", path, {"subnet_id": self.any("subnet")})

    def floating_ip(self) -> Response:
        body = {"floatingip": {"floating_network_id": self.any("outside")}}
        return self.make("network", "/floatingips", body, "floatingip", "floatingip")

    def rule(self) -> Response:
        ends = {"security_group_id": self.any("group"), "remote_group_id": self.any("group")}
        body = {"security_group_rule": {**ends, "direction": "ingress"}}
        return self.client.post("network", "/security-group-rules", body)

    def project(self) -> Response:
        return self.make("identity", "/projects", {"project": {"name": self.few("p")}}, "project", "project")


def deletes(service: str, path: str, noun: str) -> Callable[[Stranger], Response]:
    return lambda s: s.client.delete(service, f"{path}/{s.any(noun)}")


ACTS: list[Callable[[Stranger], Response]] = [
    Stranger.boot,
    Stranger.boot,
    Stranger.act,
    deletes("compute", "/servers", "server"),
    lambda s: s.client.put("compute", f"/servers/{s.any('server')}", {"server": {"name": s.few("n")}}),
    lambda s: s.client.get("compute", "/servers/detail?limit=5"),
    Stranger.flavor,
    Stranger.specs,
    lambda s: s.client.delete("compute", f"/flavors/{s.few('f')}"),
    lambda s: s.client.delete("compute", f"/flavors/{s.few('f')}/os-extra_specs/{s.few('a')}"),
    lambda s: s.client.post("compute", "/os-keypairs", {"keypair": {"name": s.few("k"), "public_key": PUBLIC_KEY}}),
    lambda s: s.client.delete("compute", f"/os-keypairs/{s.few('k')}"),
    lambda s: s.client.put("compute", f"/os-quota-sets/{s.client.project_id}", {"quota_set": {"instances": -1}}),
    lambda s: s.client.delete("compute", f"/os-quota-sets/{s.client.project_id}"),
    lambda s: s.make("network", "/networks", {"network": {"name": "n"}}, "network", "network"),
    deletes("network", "/networks", "network"),
    Stranger.subnet,
    deletes("network", "/subnets", "subnet"),
    lambda s: s.make("network", "/ports", {"port": {"network_id": s.any("network")}}, "port", "port"),
    lambda s: s.client.put("network", f"/ports/{s.any('port')}", {"port": {"security_groups": [s.any("group")]}}),
    Stranger.delete_unused_port,
    lambda s: s.make("network", "/routers", {"router": {"name": "r"}}, "router", "router"),
    deletes("network", "/routers", "router"),
    lambda s: s.interface("add"),
    lambda s: s.interface("remove"),
    Stranger.floating_ip,
    lambda s: s.client.put(
        "network", f"/floatingips/{s.any('floatingip')}", {"floatingip": {"port_id": s.any("port")}}
    ),
    deletes("network", "/floatingips", "floatingip"),
    lambda s: s.make("network", "/security-groups", {"security_group": {"name": "g"}}, "group", "security_group"),
    deletes("network", "/security-groups", "group"),
    Stranger.rule,
    lambda s: s.client.get("network", f"/auto-allocated-topology/{s.client.project_id}"),
    lambda s: s.client.delete("network", f"/auto-allocated-topology/{s.client.project_id}"),
    lambda s: s.make("image", "/images", {"disk_format": "raw", "container_format": "bare"}, "image"),
    lambda s: s.client.request("PUT", "image", f"/images/{s.any('image')}/file", content=b"x" * 1000),
    lambda s: s.client.put("image", f"/images/{s.any('image')}/tags/{s.few('t')}", {}),
    lambda s: s.client.post("image", f"/images/{s.any('image')}/members", {"member": s.few("m")}),
    deletes("image", "/images", "image"),
    Stranger.project,
    deletes("identity", "/projects", "project"),
]


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_everybody_at_once(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> None:
    url = new_database(request.getfixturevalue("postgresql_server")) if database == "postgresql" else ""
    with victim(tmp_path / "data", url) as cloud:
        admin = cloud.client("kilonova")
        made: dict[str, list[str]] = defaultdict(list)
        made["boot image"] = [admin.get("image", "/images").json()["images"][0]["id"]]
        made["outside"] = [admin.get("network", "/networks?router:external=True").json()["networks"][0]["id"]]
        strangers = [Stranger(cloud, admin.token, admin.project_id, made, number) for number in range(CLIENTS)]
        give_up = time.monotonic() + PATIENCE

        def enough() -> bool:
            return sum(each.statuses[202] for each in strangers) > 10 or time.monotonic() > give_up

        threads = [threading.Thread(target=stranger.run, args=(enough,)) for stranger in strangers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [stranger.trouble for stranger in strangers if stranger.trouble] == []
        statuses = sum((stranger.statuses for stranger in strangers), Counter[int]())
        assert statuses.keys() <= {200, 201, 202, 204, 400, 403, 404, 409, 410, 412}, statuses
        assert statuses[202] > 10, statuses
