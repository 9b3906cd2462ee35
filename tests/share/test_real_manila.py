"""Shares of a real Manila in servers (`share.url`). Runs where `tests/support/real_manila.py` finds a Manila.

The test takes about a minute.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cloud_process import Client, CloudProcess
from tests.support.databases import PostgresServer
from tests.support.real_manila import RealManila, missing, wait_until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

NEWEST = {"X-OpenStack-Manila-API-Version": "2.82"}
TYPE = {"name": "default", "extra_specs": {"driver_handles_share_servers": "False"}}


class Scene:
    def __init__(self, cloud: CloudProcess, manila: RealManila) -> None:
        self.cloud, self.manila = cloud, manila
        self.admin = cloud.client("kilonova", version="2.97")
        self.demo = cloud.client("kilonova-demo", version="2.97")

    def share(self, method: str, path: str, body: Any = None, client: Client | None = None) -> Any:
        """Call Manila itself."""
        caller = client or self.demo
        headers = {**NEWEST, "X-Auth-Token": caller.token}
        return caller.request_url(method, f"{self.manila.url}/v2{path}", json=body, headers=headers)

    def make_share(self) -> str:
        made = self.share("POST", "/shares", {"share": {"share_proto": "NFS", "size": 1, "name": "docs"}})
        assert made.status == 200, made.body
        share_id = str(made.json()["share"]["id"])
        status = lambda: self.share("GET", f"/shares/{share_id}").json()["share"]["status"]  # noqa: E731
        wait_until(lambda: status() == "available", "the share is available")
        return share_id

    def boot_stopped(self) -> str:
        server_id = self.demo.boot()
        self.demo.wait(server_id, status="ACTIVE")
        self.act(server_id, "os-stop", "SHUTOFF")
        return server_id

    def act(self, server_id: str, action: str, status: str) -> None:
        answer = self.demo.post("compute", f"/servers/{server_id}/action", {action: None})
        assert answer.status == 202, answer.body
        self.demo.wait(server_id, status=status)

    def attach(self, server_id: str, share_id: str) -> None:
        body = {"share": {"share_id": share_id, "tag": "data"}}
        answer = self.demo.post("compute", f"/servers/{server_id}/shares", body)
        assert answer.status == 201, answer.body
        wait_until(lambda: self.status(server_id, share_id) == "inactive", "the share is attached")

    def status(self, server_id: str, share_id: str) -> str:
        answer = self.demo.get("compute", f"/servers/{server_id}/shares/{share_id}")
        return str(answer.json()["share"]["status"]) if answer.status == 200 else "gone"

    def rules(self, share_id: str, client: Client) -> list[str]:
        listed = self.share("GET", f"/share-access-rules?share_id={share_id}", client=client)
        return [rule["access_to"] for rule in listed.json()["access_list"]]

    def locks(self) -> list[Any]:
        listed = self.share("GET", "/resource-locks?all_projects=True", client=self.admin)
        return list(listed.json()["resource_locks"])


@pytest.fixture(scope="module")
def scene(postgresql_server: PostgresServer) -> Iterator[Scene]:
    # RabbitMQ refuses long paths.
    with tempfile.TemporaryDirectory(prefix="manila-") as directory:
        database = postgresql_server.create()
        with RealManila(Path(directory), postgresql_server.url(database)) as manila:
            config = Path(directory) / "kilonova.toml"
            config.write_text(f'[share]\nurl = "{manila.url}"\n')
            with CloudProcess(Path(directory) / "data", "--config", str(config), "--hosts", "1") as cloud:
                manila.start(cloud)
                created = Scene(cloud, manila)
                made = created.share("POST", "/types", {"share_type": TYPE}, created.admin)
                assert made.status == 200, made.body
                services = lambda: created.share("GET", "/services?state=up", client=created.admin)  # noqa: E731
                wait_until(lambda: len(services().json()["services"]) == 2, "Manila's services are up")
                yield created
        postgresql_server.drop(database)


def test_share_of_manila_is_attached_used_and_detached(scene: Scene) -> None:
    share_id, server_id = scene.make_share(), scene.boot_stopped()
    scene.attach(server_id, share_id)
    # Manila hides the host's address from the user, and keeps share and rule.
    assert scene.rules(share_id, scene.demo) == ["******"]
    service = scene.cloud.client("kilonova")
    assert len(scene.rules(share_id, service)) == 1
    refused = scene.share("DELETE", f"/shares/{share_id}")
    assert (refused.status, b"prevent delete action" in refused.body) == (403, True)
    scene.act(server_id, "os-start", "ACTIVE")
    assert scene.status(server_id, share_id) == "active"
    scene.act(server_id, "os-stop", "SHUTOFF")
    assert scene.demo.delete("compute", f"/servers/{server_id}/shares/{share_id}").status == 200
    wait_until(lambda: scene.status(server_id, share_id) == "gone", "the share is detached")
    wait_until(lambda: scene.rules(share_id, scene.demo) == [], "Manila has removed the rule")
    assert scene.locks() == []
    assert scene.share("DELETE", f"/shares/{share_id}").status == 202


def test_deletion_of_a_server_waits_for_manila(scene: Scene) -> None:
    share_id, server_id = scene.make_share(), scene.boot_stopped()
    scene.attach(server_id, share_id)
    scene.manila.kill("api")
    assert scene.demo.delete("compute", f"/servers/{server_id}").status == 204
    log = "'release shares' is retried"
    wait_until(lambda: log in scene.cloud.log, "the deletion waits")
    scene.manila.start_api()
    wait_until(lambda: scene.demo.get("compute", f"/servers/{server_id}").status == 404, "the server is deleted")
    wait_until(lambda: scene.rules(share_id, scene.demo) == [], "Manila has removed the rule")
    assert scene.locks() == []
