"""A cloud whose identity, image, network and volume services are those of another process.

The other process is a whole Kilonova, which stands for Keystone, Glance, Neutron and Cinder: it has their public APIs,
a catalogue, and no table in common. tests/openstack does the same with the real services. Images of servers are tested
there only: unlike Glance, the built-in image service lets no member choose an id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kilonova import ids
from kilonova.config import ConfigError, load
from kilonova.datadir import SECRETS
from kilonova.startup_checks import CannotStart, Roles, check
from tests.support.cloud_process import Client, CloudProcess
from tests.support.ports import free_port


class Pair:
    """`companions` is the process with the other services, `compute` the one under test."""

    def __init__(self, directory: Path, **settings: str) -> None:
        # Its address stays the same when it starts again, as in the configuration of the other process.
        self.companions = CloudProcess(directory / "companions", "--port", str(free_port()))
        self.compute: CloudProcess
        self.directory = directory
        self.settings = settings

    def __enter__(self) -> Pair:
        self.companions.start()
        passwords = json.loads((self.companions.data / SECRETS).read_text())["passwords"]
        environ = {
            "KILONOVA_IDENTITY__AUTH_URL": self.companions.endpoints["identity"],
            "KILONOVA_IDENTITY__PASSWORD": passwords["kilonova"],
            **self.settings,
        }
        self.compute = CloudProcess(self.directory / "compute", environ=environ)
        self.compute.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.compute.kill()
        self.companions.kill()

    def client(self, cloud: str = "kilonova-demo", version: str | None = None) -> Client:
        endpoints = {**self.companions.endpoints, **self.compute.endpoints}
        return Client(endpoints, self.companions.clouds[cloud], version)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair"), KILONOVA_IDENTITY__TOKEN_CACHE_SECONDS="0") as started:
        yield started


def test_process_serves_compute_and_placement_only(pair: Pair) -> None:
    assert set(pair.compute.endpoints) == {"auth_url", "compute", "placement"}
    assert pair.compute.endpoints["auth_url"] == pair.companions.endpoints["auth_url"]
    base = pair.compute.endpoints["compute"].removesuffix("/compute/v2.1")
    client = pair.client()
    for path in ("/identity/v3", "/network/v2.0/networks", "/volume/v3", "/image/v2/images"):
        assert client.request_url("GET", base + path, headers={"X-Auth-Token": client.token}).status == 404, path


def test_challenge_names_the_identity_service(pair: Pair) -> None:
    answer = pair.client().request_url("GET", f"{pair.compute.endpoints['compute']}/servers")
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == f'Keystone uri="{pair.companions.endpoints["identity"]}"'


def test_server_uses_image_network_and_volume_of_the_other_services(pair: Pair) -> None:
    member = pair.client()
    image = member.get("image", "/images").json()["images"][0]["id"]
    network = member.get("network", "/networks?name=private").json()["networks"][0]["id"]
    device = {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume", "volume_size": 1}
    body = {"name": "web", "flavorRef": "1", "networks": [{"uuid": network}], "block_device_mapping_v2": [device]}
    server_id = member.post("compute", "/servers", {"server": body}).json()["server"]["id"]
    server = member.wait(server_id, status="ACTIVE")
    (port,) = member.get("network", f"/ports?device_id={server_id}").json()["ports"]
    assert [each["addr"] for each in server["addresses"]["private"]] == [port["fixed_ips"][0]["ip_address"]]
    (attached,) = server["os-extended-volumes:volumes_attached"]
    volume = member.get("volume", f"/volumes/{attached['id']}").json()["volume"]
    assert (volume["status"], volume["attachments"][0]["server_id"]) == ("in-use", server_id)
    assert volume["os-vol-tenant-attr:tenant_id"] == server["tenant_id"]

    assert member.delete("compute", f"/servers/{server_id}").status == 204
    _wait_until_deleted(member, server_id)
    assert member.get("network", f"/ports?device_id={server_id}").json()["ports"] == []
    assert member.get("volume", f"/volumes/{attached['id']}").json()["volume"]["status"] == "available"
    assert member.delete("volume", f"/volumes/{attached['id']}").status == 202


def test_roles_and_scopes_are_those_of_the_identity_service(pair: Pair) -> None:
    hypervisors = {
        cloud: pair.client(cloud, "2.53").get("compute", "/os-hypervisors").status
        for cloud in ("kilonova", "kilonova-demo", "kilonova-demo-reader")
    }
    assert hypervisors == {"kilonova": 200, "kilonova-demo": 403, "kilonova-demo-reader": 403}
    body = {"server": {"name": "web", "flavorRef": "1", "imageRef": ids.new_id(), "networks": "none"}}
    assert pair.client("kilonova-demo-reader", "2.37").post("compute", "/servers", body).status == 403
    assert pair.client("kilonova-system", "2.105").get("compute", "/os-hypervisors").status == 200


def test_quota_of_an_unknown_project_is_refused(pair: Pair) -> None:
    admin = pair.client("kilonova")
    body = {"quota_set": {"instances": 3}}
    assert admin.put("compute", f"/os-quota-sets/{pair.client().project_id}", body).status == 200
    refused = admin.put("compute", f"/os-quota-sets/{ids.new_id()}", body)
    assert refused.status == 400
    assert "is not a valid project" in refused.json()["badRequest"]["message"]


def test_revoked_token_is_refused(pair: Pair) -> None:
    member = pair.client()
    assert member.get("compute", "/servers").status == 200
    revoked = member.delete("auth_url", "/auth/tokens", headers={"X-Subject-Token": member.token})
    assert revoked.status == 204
    assert member.get("compute", "/servers").status == 401


def test_identity_service_that_is_down_loses_no_request(tmp_path: Path) -> None:
    with Pair(tmp_path, KILONOVA_IDENTITY__TOKEN_CACHE_SECONDS="600") as pair:
        known, other = pair.client(), pair.client("kilonova-demo-reader")
        server_id = known.boot()
        known.wait(server_id, status="ACTIVE")
        assert other.token
        pair.companions.kill()

        assert known.get("compute", f"/servers/{server_id}").status == 200
        refused = other.get("compute", "/servers")
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert known.delete("compute", f"/servers/{server_id}").status == 204
        assert known.get("compute", f"/servers/{server_id}").json()["server"]["OS-EXT-STS:task_state"] == "deleting"

        pair.companions.start()
        _wait_until_deleted(known, server_id)
        assert other.get("compute", "/servers").status == 200
        assert known.get("network", f"/ports?device_id={server_id}").json()["ports"] == []


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("identity.auth_url", "keystone:5000", "identity.auth_url: 'keystone:5000' is not an http"),
        ("identity.auth_url", "built-in", "identity.auth_url: 'built-in' is not an http"),
        ("network.url", "//neutron", "network.url: '//neutron' is not an http"),
        ("identity.auth_url", "http://127.0.0.1:5000/v3", "identity.password: Kilonova logs in as kilonova"),
        ("image.url", "http://glance:port", "image.url: 'http://glance:port' is not an http"),
        ("image.url", "http://[::1", "is not an http"),
        ("identity.token_cache_seconds", "-1", "identity.token_cache_seconds: -1.0 is not between 0 and 3600"),
        ("identity.auth_url", "http://keystone.example/v3", "tokens go to keystone.example without encryption"),
    ],
)
def test_unusable_setting_is_refused(setting: str, value: str, message: str) -> None:
    flags = {setting: value}
    if value.startswith("http://keystone"):
        flags["identity.password"] = "secret"
    with pytest.raises(CannotStart, match=message):
        check(load(environ={}, flags=flags), Roles())


def test_unknown_interface_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"identity\.interface"):
        load(environ={}, flags={"identity.interface": "private"})


@pytest.mark.parametrize(
    ("flags", "built_in"),
    [
        ({}, True),
        ({"image.url": "http://127.0.0.1:9292"}, False),
        ({"identity.auth_url": "http://127.0.0.1:5000"}, False),
        ({"identity.auth_url": "http://127.0.0.1:5000", "image.url": "built-in"}, True),
        ({"image.url": "built-in"}, True),
    ],
)
def test_service_is_built_in(flags: dict[str, str], built_in: bool) -> None:
    assert load(environ={}, flags=flags).is_built_in("image") is built_in


def test_service_beside_a_real_keystone_can_be_built_in(tmp_path: Path) -> None:
    with Pair(tmp_path, KILONOVA_IMAGE__URL="built-in", KILONOVA_NETWORK__URL="built-in") as pair:
        assert set(pair.compute.endpoints) == {"auth_url", "compute", "placement", "image", "network"}
        member = pair.client()
        assert member.get("image", "/images").status == 200
        body = {"name": "own", "disk_format": "raw", "container_format": "bare"}
        image_id = member.post("image", "/images", body).json()["id"]
        assert member.request("PUT", "image", f"/images/{image_id}/file", content=b"disk").status == 204
        body = {"server": {"name": "web", "flavorRef": "1", "imageRef": image_id, "networks": "none"}}
        created = member.post("compute", "/servers", body, version="2.37")
        member.wait(created.json()["server"]["id"], status="ACTIVE")


def test_wrong_password_of_the_service_user_is_logged(tmp_path: Path) -> None:
    with Pair(tmp_path, KILONOVA_IDENTITY__PASSWORD="wrong") as pair:
        answer = pair.client().get("compute", "/servers")
        assert answer.status == 503
        assert "the identity service refused the service user: 401" in pair.compute.log
        assert "wrong" not in pair.compute.log


def test_password_reaches_no_output(pair: Pair) -> None:
    password = pair.compute.environ["KILONOVA_IDENTITY__PASSWORD"]
    assert password not in pair.compute.log
    assert password not in pair.compute.output


def _wait_until_deleted(client: Client, server_id: str) -> None:
    until = time.monotonic() + 60
    while client.get("compute", f"/servers/{server_id}").status != 404:
        assert time.monotonic() < until
        time.sleep(0.02)
