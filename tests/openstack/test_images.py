"""Images of a real Glance: which boot, what snapshots, backups and shelving leave there, and uploads that break off."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.kilonova_process import Kilonova, server_body, wait_for
from tests.openstack.proxy import Proxy, matches
from tests.support.cloud_process import Client, Response

Start = Callable[..., AbstractContextManager[Kilonova]]
RAW = {"disk_format": "raw", "container_format": "bare"}
TASK = "OS-EXT-STS:task_state"
PATCH_TYPE = {"Content-Type": "application/openstack-images-v2.1-json-patch"}


class User:
    """A user's servers and images, removed by `clean_up`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.images: list[str] = []

    def image(self, name: str) -> dict[str, Any]:
        images = self.client.get("image", f"/images?name={name}").json()["images"]
        return dict(images[0])

    def show_image(self, image_id: str) -> dict[str, Any] | None:
        answer = self.client.get("image", f"/images/{image_id}")
        return dict(answer.json()) if answer.status == 200 else None

    def new_image(self, data: bytes | None = b"data", **attributes: Any) -> str:
        made = self.client.post("image", "/images", {"name": "test", **RAW, **attributes}).json()
        self.images.append(made["id"])
        if data is not None:
            self.call("PUT", f"/images/{made['id']}/file", data, {"Content-Type": "application/octet-stream"})
        return str(made["id"])

    def call(self, method: str, path: str, content: bytes = b"", headers: dict[str, str] | None = None) -> Response:
        sent = {"X-Auth-Token": self.client.token, **(headers or {})}
        url = self.client.endpoints["image"] + path
        answer = self.client.request_url(method, url, headers=sent, content=content)
        assert answer.status < 300, answer.body
        return answer

    def patch(self, image_id: str, **attributes: Any) -> None:
        changes = [{"op": "add", "path": f"/{name}", "value": value} for name, value in attributes.items()]
        self.call("PATCH", f"/images/{image_id}", json.dumps(changes).encode(), PATCH_TYPE)

    def boot(self, image_id: str, **more: Any) -> Response:
        network = self.client.get("network", "/networks?name=shared").json()["networks"][0]
        return self.client.post("compute", "/servers", server_body({"id": image_id}, network, **more))

    def server(self, image_id: str) -> str:
        answer = self.boot(image_id)
        assert answer.status == 202, answer.body
        server_id = str(answer.json()["server"]["id"])
        assert self.settled(server_id)["status"] == "ACTIVE"
        return server_id

    def settled(self, server_id: str) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            shown: dict[str, Any] = self.client.get("compute", f"/servers/{server_id}").json()["server"]
            return None if shown["status"] == "BUILD" or shown[TASK] else shown

        found = wait_for(find, "the server has settled")
        assert found is not None
        return found

    def act(self, server_id: str, **action: Any) -> dict[str, Any]:
        answer = self.client.post("compute", f"/servers/{server_id}/action", action, version="2.45")
        assert answer.status == 202, answer.body
        found: dict[str, Any] = json.loads(answer.body or b"{}")
        if "image_id" in found:
            self.images.append(found["image_id"])
        return found

    def snapshot(self, server_id: str, name: str = "snapshot", **metadata: str) -> str:
        return str(self.act(server_id, createImage={"name": name, "metadata": metadata})["image_id"])

    def clean_up(self) -> None:
        for image_id in self.images:
            self.client.delete("image", f"/images/{image_id}")


@pytest.fixture
def demo(kilonova: Kilonova) -> Iterator[User]:
    user = User(kilonova.user())
    yield user
    user.clean_up()


@pytest.fixture
def admin(kilonova: Kilonova) -> Iterator[User]:
    user = User(kilonova.admin)
    yield user
    user.clean_up()


@pytest.fixture
def start(started_kilonova: Kilonova, cloud: Cloud, tmp_path: Path) -> Start:
    """Starts a Kilonova with other settings in the place of the common one."""

    @contextmanager
    def run(**settings: str) -> Iterator[Kilonova]:
        started_kilonova.stop()
        with Kilonova(cloud, tmp_path / "data", environ=settings) as running:
            yield running
            running.delete_servers()
            assert [text for text in running.leftovers() if text.startswith("image")] == []

    return run


def test_snapshot_belongs_to_the_project_of_its_server(kilonova: Kilonova, demo: User) -> None:
    base = demo.image("tiny")
    server_id = demo.server(base["id"])
    image_id = demo.snapshot(server_id, "first", colour="green", os_glance_failed_import="fast", stores="slow")
    demo.settled(server_id)
    shown = demo.show_image(image_id)
    assert shown is not None
    project_id = demo.client.project_id
    assert (shown["owner"], shown["status"], shown["visibility"]) == (project_id, "active", "private")
    assert (shown["base_image_ref"], shown["instance_uuid"], shown["image_type"]) == (base["id"], server_id, "snapshot")
    assert (shown["min_disk"], shown["colour"], shown["disk_format"]) == (1, "green", "raw")
    # In the default store; what Glance itself adds to images is no property.
    assert shown["stores"] == "fast"
    assert not [name for name in shown if name.startswith("os_glance")]
    proxied = demo.client.get("compute", f"/images/{image_id}", version="2.1").json()["image"]
    assert not {"stores", "locations", "direct_url", "os_hash_value"} & proxied["metadata"].keys()
    assert proxied["server"]["id"] == server_id
    assert demo.settled(demo.server(image_id))["image"]["id"] == image_id


def test_images_that_the_user_may_see_boot(kilonova: Kilonova, demo: User, admin: User) -> None:
    community = admin.new_image(visibility="community")
    hidden = admin.new_image(visibility="public", os_hidden=True)
    shared, private = admin.new_image(visibility="shared"), admin.new_image(visibility="private")
    admin.client.post("image", f"/images/{shared}/members", {"member": demo.client.project_id})
    for image_id in (community, hidden, shared):
        demo.server(image_id)
    refused = demo.boot(private)
    assert (refused.status, refused.json()["badRequest"]["message"]) == (
        400,
        f"Can not find requested image {private}.",
    )


def test_images_without_usable_data_are_refused(kilonova: Kilonova, demo: User, admin: User) -> None:
    queued, deactivated = demo.new_image(None), demo.new_image()
    server_id = demo.server(deactivated)
    admin.call("POST", f"/images/{deactivated}/actions/deactivate")
    for image_id in (queued, deactivated):
        refused = demo.boot(image_id)
        assert (refused.status, refused.json()["badRequest"]["message"]) == (400, f"Image {image_id} is not active.")
    answer = demo.client.post("compute", f"/servers/{server_id}/action", {"rebuild": {"imageRef": deactivated}})
    assert answer.status == 400
    # The properties of a server's image are kept, so its snapshot needs no download.
    assert wait_for(lambda: demo.show_image(demo.snapshot(server_id)), "the snapshot exists")
    assert demo.settled(server_id)["status"] == "ACTIVE"


def test_long_and_empty_properties_are_inherited(kilonova: Kilonova, demo: User) -> None:
    image_id = demo.new_image()
    demo.patch(image_id, long="x" * 60_000, os_distro="", hw_qemu_guest_agent="yes")
    server_id = demo.server(image_id)
    copy = demo.show_image(demo.snapshot(server_id))
    assert copy is not None
    assert (len(copy["long"]), copy["os_distro"], copy["hw_qemu_guest_agent"]) == (60_000, "", "yes")
    demo.settled(server_id)


def test_backups_rotate(kilonova: Kilonova, demo: User) -> None:
    server_id = demo.server(demo.image("tiny")["id"])
    made = []
    for number in range(3):
        backup = {"name": f"backup {number}", "backup_type": "daily", "rotation": 2}
        made.append(demo.act(server_id, createBackup=backup)["image_id"])
        demo.settled(server_id)
    wait_for(lambda: demo.show_image(made[0]) is None, "the oldest backup is deleted")
    left = demo.client.get("image", "/images?backup_type=daily").json()["images"]
    assert sorted(image["id"] for image in left) == sorted(made[1:])
    assert {(image["owner"], image["status"]) for image in left} == {(demo.client.project_id, "active")}


def test_shelving_leaves_no_image(kilonova: Kilonova, demo: User) -> None:
    def shelved_images() -> list[dict[str, Any]]:
        return [dict(each) for each in demo.client.get("image", "/images?name=server-shelved").json()["images"]]

    servers = [demo.server(demo.image("tiny")["id"]) for _ in range(2)]
    for server_id in servers:
        demo.act(server_id, shelve=None)
        assert demo.settled(server_id)["status"].startswith("SHELVED")
    assert [image["owner"] for image in shelved_images()] == [demo.client.project_id] * 2
    demo.act(servers[0], unshelve=None)
    assert demo.settled(servers[0])["status"] == "ACTIVE"
    demo.client.delete("compute", f"/servers/{servers[1]}")
    wait_for(lambda: not shelved_images(), "the images of shelved servers are deleted")


def test_snapshot_of_volume_backed_server(kilonova: Kilonova, demo: User) -> None:
    image = demo.image("tiny")["id"]
    device = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume", "volume_size": 1}
    root = {**device, "delete_on_termination": True}
    server_id = demo.boot("", block_device_mapping_v2=[root]).json()["server"]["id"]
    assert demo.settled(server_id)["status"] == "ACTIVE"
    image_id = demo.snapshot(server_id)
    demo.settled(server_id)
    shown = demo.show_image(image_id)
    assert shown is not None
    (mapped,) = json.loads(shown["block_device_mapping"])
    assert (shown["owner"], shown["size"], mapped["source_type"]) == (demo.client.project_id, 0, "snapshot")
    demo.client.delete("compute", f"/servers/{server_id}")
    kilonova.wait_until_idle()
    wait_for(
        lambda: demo.client.delete("volume", f"/snapshots/{mapped['snapshot_id']}").status in (202, 404),
        "the snapshot is deleted",
    )


def test_missing_role_of_the_service_user_fails_clearly(kilonova: Kilonova, cloud: Cloud) -> None:
    name, identity = f"test-{uuid.uuid4().hex[:8]}", cloud.client()

    def create(collection: str, **attributes: Any) -> str:
        noun = collection.removesuffix("s")
        return str(identity.post("identity", f"/{collection}", {noun: {"name": name, **attributes}})[noun]["id"])

    domain = create("domains")
    project, user = create("projects", domain_id=domain), create("users", domain_id=domain, password=name)
    role = next(each["id"] for each in identity.get("identity", "/roles")["roles"] if each["name"] == "member")
    identity.put("identity", f"/projects/{project}/users/{user}/roles/{role}")
    auth = {**cloud.auth(), "username": name, "password": name, "project_name": name}
    auth |= {"user_domain_name": name, "project_domain_name": name}
    stranger = User(Client(kilonova.user().endpoints, {"auth": auth}))
    try:
        server_id = stranger.server(stranger.image("tiny")["id"])
        image_id = stranger.snapshot(server_id)
        assert stranger.settled(server_id)["status"] == "ACTIVE"
        assert stranger.show_image(image_id) is None
        kilonova.wait_until_idle()
        url = f"/servers/{server_id}/os-instance-actions"
        (failed,) = [
            action
            for action in kilonova.admin.get("compute", url).json()["instanceActions"]
            if action["action"] == "createImage"
        ]
        assert failed["message"] is not None
        kilonova.delete_servers()
    finally:
        identity.patch("identity", f"/domains/{domain}", {"domain": {"enabled": False}})
        identity.delete("identity", f"/domains/{domain}")


def test_image_proxy_follows_pages(kilonova: Kilonova, demo: User) -> None:
    made = [demo.new_image(None, name=f"page {number}", group="pages") for number in range(27)]
    client = demo.client

    def ids(query: str) -> list[str]:
        answer = client.get("compute", f"/images{query}", version="2.1")
        assert answer.status == 200, answer.body
        return [image["id"] for image in answer.json()["images"]]

    # More than a page of Glance.
    assert sorted(ids("?property-group=pages")) == sorted(made)
    assert sorted(ids("?status=SAVING&property-group=pages")) == sorted(made)
    assert ids("?status=ACTIVE&property-group=pages") == []
    first = ids("?property-group=pages&limit=10")
    rest = ids(f"?property-group=pages&marker={first[-1]}")
    assert (len(first), len(rest), set(first) | set(rest)) == (10, 17, set(made))
    path = f"/images/{made[0]}/metadata"
    changed = client.post("compute", path, {"metadata": {"colour": "red"}}, version="2.1")
    assert changed.json()["metadata"] == {"group": "pages", "colour": "red"}
    assert client.put("compute", path, {"metadata": {"colour": "blue"}}, version="2.1").status == 200
    assert client.delete("compute", f"{path}/colour", version="2.1").status == 204
    assert client.get("compute", path, version="2.1").json() == {"metadata": {}}
    assert client.delete("compute", f"/images/{made[0]}", version="2.1").status == 204
    assert client.get("compute", f"/images/{made[0]}", version="2.1").status == 404


# Faults


def begin_upload(cloud: Cloud, image_id: str) -> http.client.HTTPConnection:
    """Begin an upload and do not end it: the image is `saving` as long as the connection lasts."""
    admin = cloud.client()
    connection = http.client.HTTPConnection(urlsplit(cloud.endpoints["image"]).netloc)
    connection.putrequest("PUT", f"/v2/images/{image_id}/file")
    for name, value in {"X-Auth-Token": admin.token, "Content-Type": "application/octet-stream"}.items():
        connection.putheader(name, value)
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    connection.send(b"4\r\nhalf\r\n")
    wait_for(lambda: admin.get("image", f"/v2/images/{image_id}")["status"] == "saving", "the image is saving")
    return connection


def test_upload_is_repeated_after_a_fault(start: Start, cloud: Cloud) -> None:
    upload = matches("PUT", "/file$")
    with Proxy(cloud.endpoints["image"]) as proxy, start(KILONOVA_IMAGE__URL=proxy.url) as kilonova:
        demo = User(kilonova.user())
        server_id = demo.server(demo.image("tiny")["id"])
        for fault in (
            lambda: proxy.drop(upload, times=2),
            lambda: proxy.fail(503, upload, times=2),
            # Glance has the data, and the answer is lost.
            lambda: proxy.drop(upload, times=1, after_service=True),
            lambda: proxy.drop(matches("POST", "/v2/images$"), times=2, after_service=True),
        ):
            fault()
            image_id = demo.snapshot(server_id)
            assert demo.settled(server_id)["status"] == "ACTIVE"
            shown = demo.show_image(image_id)
            assert shown is not None
            assert (shown["status"], shown["size"] > 50) == ("active", True)
            proxy.reset()
        # Another upload to the image has been cut off, and Glance sees it late.
        held = proxy.hold(upload)
        image_id = demo.snapshot(server_id)
        assert held.reached.wait(30)
        connection, before = begin_upload(cloud, image_id), proxy.count(upload)
        proxy.reset()
        wait_for(lambda: proxy.count(upload) >= before + 2, "the upload was refused and repeated")
        connection.close()
        demo.settled(server_id)
        shown = demo.show_image(image_id)
        assert shown is not None
        assert shown["size"] > 50
        demo.clean_up()


def test_refused_upload_leaves_no_image(start: Start, cloud: Cloud) -> None:
    with Proxy(cloud.endpoints["image"]) as proxy, start(KILONOVA_IMAGE__URL=proxy.url) as kilonova:
        demo = User(kilonova.user())
        server_id = demo.server(demo.image("tiny")["id"])
        for status in (403, 413):
            proxy.fail(status, matches("PUT", "/file$"))
            image_id = demo.snapshot(server_id)
            assert demo.settled(server_id)["status"] == "ACTIVE"
            wait_for(lambda: demo.show_image(image_id) is None, "the image is deleted")  # noqa: B023
            proxy.reset()
        demo.act(server_id, shelve=None)
        assert demo.settled(server_id)["status"].startswith("SHELVED")


def test_killed_kilonova_continues_its_upload(start: Start, cloud: Cloud) -> None:
    with Proxy(cloud.endpoints["image"]) as proxy, start(KILONOVA_IMAGE__URL=proxy.url) as kilonova:
        demo = User(kilonova.user())
        server_id = demo.server(demo.image("tiny")["id"])
        held = proxy.hold(matches("PUT", "/file$"))
        image_id = demo.snapshot(server_id)
        assert held.reached.wait(30)
        kilonova.kill()
        proxy.reset()
        kilonova.start()
        demo.client = kilonova.user()
        assert demo.settled(server_id)["status"] == "ACTIVE"
        shown = demo.show_image(image_id)
        assert shown is not None
        assert shown["status"] == "active"
        demo.clean_up()


def test_snapshots_end_after_glance_was_killed(kilonova: Kilonova, cloud: Cloud, demo: User) -> None:
    servers = [demo.server(demo.image("tiny")["id"]) for _ in range(3)]
    with cloud.killed("glance"):
        for server_id in servers:
            demo.act(server_id, createImage={"name": "after"})
    for server_id in servers:
        assert demo.settled(server_id)["status"] == "ACTIVE"
    made = demo.client.get("image", "/images?name=after").json()["images"]
    assert [image["status"] for image in made] == ["active"] * 3


@pytest.mark.long
def test_upload_that_a_killed_glance_never_ends_leaves_no_image(start: Start, cloud: Cloud) -> None:
    with Proxy(cloud.endpoints["image"]) as proxy, start(KILONOVA_IMAGE__URL=proxy.url) as kilonova:
        demo = User(kilonova.user())
        server_id = demo.server(demo.image("tiny")["id"])
        held = proxy.hold(matches("PUT", "/file$"))
        image_id = demo.snapshot(server_id)
        assert held.reached.wait(30)
        connection = begin_upload(cloud, image_id)
        with cloud.killed("glance"):
            connection.close()
        proxy.reset()
        # Glance shows the image as `saving` for ever.
        assert demo.settled(server_id)["status"] == "ACTIVE"
        wait_for(lambda: demo.show_image(image_id) is None, "the image is deleted")
