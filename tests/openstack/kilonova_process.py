"""A process of `kilonova up` beside real services, and what it has left at them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.openstack.cloud import Cloud
from tests.openstack.cloud.settings import PASSWORD
from tests.support.cloud_process import Client, CloudProcess, kilonova

T = TypeVar("T")
TIMEOUT_SECONDS = 120.0
UNLIMITED = {f"KILONOVA_QUOTA__{name}": "-1" for name in ("INSTANCES", "CORES", "RAM")}


def wait_for(find: Callable[[], T], what: str, seconds: float = TIMEOUT_SECONDS) -> T:
    """The first true result of the function."""
    until = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < until, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)
    return found


class Kilonova(CloudProcess):
    """Registered in the cloud's Keystone, at the address that its catalogue has."""

    def __init__(
        self, cloud: Cloud, data: Path, *options: str, environ: Mapping[str, str] | None = None, hosts: int = 3
    ) -> None:
        self.cloud = cloud
        settings = {
            "KILONOVA_IDENTITY__AUTH_URL": cloud.endpoints["identity"],
            "KILONOVA_IDENTITY__PASSWORD": PASSWORD,
            **UNLIMITED,
            **(environ or {}),
        }
        port = str(cloud.settings.port("compute"))
        super().__init__(data, "--port", port, "--hosts", str(hosts), *options, environ=settings)

    def register(self) -> list[dict[str, str]]:
        """Run `kilonova register`; returns the changes."""
        login = {f"OS_{name.upper()}": value for name, value in self.cloud.auth().items()}
        url = self.cloud.compute_url.removesuffix("/compute/v2.1")
        done = kilonova("register", "--url", url, "--json", environ={**self.environ, **login})
        assert done.returncode == 0, done.stderr
        changes: list[dict[str, str]] = json.loads(done.stdout)
        return changes

    def user(self, name: str = "demo", project: str = "demo", version: str | None = None) -> Client:
        """Requests of a user of Keystone."""
        urls = self.cloud.endpoints
        endpoints = {
            **self.endpoints,
            "identity": urls["identity"],
            "image": f"{urls['image']}/v2",
            "network": f"{urls['network']}/v2.0",
            "volume": urls["block-storage"],
        }
        return Client(endpoints, {"auth": self.cloud.auth(name, project)}, version)

    @property
    def admin(self) -> Client:
        return self.user("admin", "admin")

    def doctor(self) -> list[dict[str, str]]:
        """The findings of `kilonova doctor`, which compares with the real services too."""
        done = kilonova("doctor", "--data", str(self.data), "--json", environ=self.environ)
        assert "not compared" not in done.stderr, done.stderr
        assert done.returncode in (0, 1), done.stderr
        findings: list[dict[str, str]] = json.loads(done.stdout)
        return findings

    def wait_until_idle(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until no operation is unfinished."""
        client, url = self.admin, self.endpoints["compute"].removesuffix("/compute/v2.1")
        wait_for(
            lambda: b"\nkilonova_operations{" not in client.request_url("GET", f"{url}/metrics").body,
            "all operations have ended",
            seconds,
        )

    def delete_servers(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Delete the servers of all projects, and wait until they are deleted."""
        admin = self.admin
        for server in admin.get("compute", "/servers?all_tenants=1").json()["servers"]:
            answer = admin.delete("compute", f"/servers/{server['id']}")
            assert answer.status in (204, 404), answer.body
        path = "/servers?all_tenants=1&limit=1"
        wait_for(lambda: not admin.get("compute", path).json()["servers"], "all servers are deleted", seconds)
        self.wait_until_idle(seconds)

    def leftovers(self) -> list[str]:
        """What servers have left at the services, once all of them are deleted."""
        admin = self.admin
        found = [
            f"port {port['id']} of {port['device_owner']} {port['device_id']}, bound to {port['binding:host_id']}"
            for port in admin.get("network", "/ports").json()["ports"]
            if port["device_owner"].startswith("compute:") or port["binding:host_id"]
        ]
        attachments = admin.get("volume", "/attachments?all_tenants=1", version="3.71").json()["attachments"]
        found += [f"attachment {each['id']} of {each['instance']}" for each in attachments]
        volumes = admin.get("volume", "/volumes/detail?all_tenants=1", version="3.71").json()["volumes"]
        found += [f"volume {each['id']} is {each['status']}" for each in volumes if each["status"] != "available"]
        images = admin.get("image", "/images?limit=1000&visibility=all").json()["images"]
        found += [f"image {each['id']} is {each['status']}" for each in images if each["status"] != "active"]
        for provider in admin.get("placement", "/resource_providers").json()["resource_providers"]:
            usages = admin.get("placement", f"/resource_providers/{provider['uuid']}/usages").json()["usages"]
            found += [f"{amount} {name} of {provider['name']}" for name, amount in usages.items() if amount]
        return found


def server_body(image: Mapping[str, Any], network: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    base = {"name": "server", "flavorRef": "1", "imageRef": image["id"], "networks": [{"uuid": network["id"]}]}
    return {"server": {**base, **more}}
