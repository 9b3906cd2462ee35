"""The cloud of OpenStack services itself, without Kilonova."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.openstack.cloud import Cloud
from tests.openstack.cloud.client import Client
from tests.openstack.cloud.content import upload_image
from tests.openstack.proxy import Proxy, matches

EVENT_TIMEOUT_SECONDS = 60.0
# A list that every service has, by type of service.
LISTS = {
    "identity": "/users",
    "image": "/v2/images",
    "network": "/v2.0/networks",
    "block-storage": "/volumes/detail",
}
EXTENSIONS = {
    "auto-allocated-topology",
    "binding-extended",
    "dns-integration",
    "ip_allocation",
    "port-resource-request-groups",
    "qos",
    "segment",
    "subnet_allocation",
    "trunk",
}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + EVENT_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture
def admin(cloud: Cloud) -> Client:
    return cloud.client()


@pytest.fixture
def port(cloud: Cloud, admin: Client) -> Iterator[str]:
    """A port on a network of its own."""
    network = admin.post("network", "/v2.0/networks", {"network": {"name": "test"}})["network"]["id"]
    subnet = {"network_id": network, "ip_version": 4, "cidr": "198.51.100.0/24"}
    admin.post("network", "/v2.0/subnets", {"subnet": subnet})
    port = admin.post("network", "/v2.0/ports", {"port": {"network_id": network}})["port"]["id"]
    yield port
    admin.delete("network", f"/v2.0/ports/{port}")
    admin.delete("network", f"/v2.0/networks/{network}")


def bind(admin: Client, port: str, host: str) -> dict[str, Any]:
    server = str(uuid.uuid4()) if host else ""
    values = {"device_id": server, "device_owner": "compute:nova" if host else "", "binding:host_id": host}
    return dict(admin.put("network", f"/v2.0/ports/{port}", {"port": values})["port"])


def status(admin: Client, port: str) -> str:
    return str(admin.get("network", f"/v2.0/ports/{port}")["port"]["status"])


def is_answering(client: Client, service: str) -> bool:
    try:
        return not client.request(service, "GET", LISTS[service]).is_error
    except httpx.HTTPError:
        return False  # Keystone ends the connection if it cannot reach its database


def create_volume(client: Client, **values: object) -> str:
    """Create a volume of 1 GiB, and wait until it is available."""
    volume = client.post("block-storage", "/volumes", {"volume": {"size": 1, **values}})["volume"]["id"]
    wait_until(lambda: volume_status(client, volume) in ("available", "error"), "volume is created")
    assert volume_status(client, volume) == "available"
    return str(volume)


def volume_status(client: Client, volume: str) -> str:
    return str(client.get("block-storage", f"/volumes/{volume}")["volume"]["status"])


@contextmanager
def compute(cloud: Cloud) -> Iterator[list[dict[str, Any]]]:
    """A compute service that accepts all events. Yields those that it received."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["events"]
            received.extend(events)
            body = json.dumps({"events": [{"status": "completed", **event, "code": 200} for event in events]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    cloud.register_compute()
    with ThreadingHTTPServer(("127.0.0.1", cloud.settings.port("compute")), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


# -- Services and first content


@pytest.mark.parametrize("service", LISTS)
def test_service_answers_with_a_token_only(cloud: Cloud, admin: Client, service: str) -> None:
    assert admin.request(service, "GET", LISTS[service]).status_code == 200
    assert httpx.get(cloud.endpoints[service] + LISTS[service], trust_env=False).status_code == 401


@pytest.mark.parametrize(
    ("user", "roles"),
    [
        ("demo", {"member", "reader"}),
        ("demo-reader", {"reader"}),
        ("demo-manager", {"manager", "member", "reader"}),
        ("demo-admin", {"admin", "manager", "member", "reader"}),
    ],
)
def test_user_has_roles_in_the_project_demo(cloud: Cloud, user: str, roles: set[str]) -> None:
    client = cloud.client(user, "demo")
    token = client.call("identity", "GET", "/auth/tokens", headers={"X-Subject-Token": client.token})["token"]
    assert {role["name"] for role in token["roles"]} == roles
    assert token["project"]["name"] == "demo"


def test_member_sees_first_content(cloud: Cloud) -> None:
    demo = cloud.client("demo", "demo")
    images = {image["name"]: image["stores"] for image in demo.get("image", "/v2/images")["images"]}
    assert {"tiny": "fast", "other": "fast", "tiny-qcow2": "fast"}.items() <= images.items()
    networks = {network["name"] for network in demo.get("network", "/v2.0/networks")["networks"]}
    assert {"public", "shared"} <= networks
    pools = demo.get("network", "/v2.0/subnetpools")["subnetpools"]
    assert [pool["name"] for pool in pools if pool["is_default"]] == ["default"]
    types = {kind["name"] for kind in demo.get("block-storage", "/types")["volume_types"]}
    assert {"local", "multiattach", "nfs"} <= types


def test_network_service_has_extensions(admin: Client) -> None:
    extensions = {extension["alias"] for extension in admin.get("network", "/v2.0/extensions")["extensions"]}
    assert extensions >= EXTENSIONS


def test_image_is_stored_in_the_named_store(admin: Client) -> None:
    image = upload_image(admin, b"content", store="slow", name="in slow")
    assert image["stores"] == "slow"
    assert Path(image["direct_url"].removeprefix("file://")).parent.name == "slow"
    assert [location["metadata"]["store"] for location in image["locations"]] == ["slow"]
    admin.delete("image", f"/v2/images/{image['id']}")


def test_image_is_copied_to_another_store(admin: Client) -> None:
    image = upload_image(admin, b"content", name="in both")["id"]
    body = {"method": {"name": "copy-image"}, "stores": ["slow"]}
    admin.post("image", f"/v2/images/{image}/import", body)

    def task_states() -> set[str]:
        return {task["status"] for task in admin.get("image", f"/v2/images/{image}/tasks")["tasks"]}

    # Glance fails to delete an image while its task still writes, also after the image has both stores.
    wait_until(lambda: task_states() == {"success"}, "image is copied")
    assert set(admin.get("image", f"/v2/images/{image}")["stores"].split(",")) == {"fast", "slow"}
    admin.delete("image", f"/v2/images/{image}")


# -- Simulated hosts


def test_bound_port_becomes_active(admin: Client, port: str) -> None:
    assert bind(admin, port, "sim-001")["binding:vif_type"] == "ovs"
    wait_until(lambda: status(admin, port) == "ACTIVE", "port is ACTIVE")
    bind(admin, port, "")
    wait_until(lambda: status(admin, port) == "DOWN", "port is DOWN")
    bind(admin, port, "sim-002")
    wait_until(lambda: status(admin, port) == "ACTIVE", "port is ACTIVE on another host")


def test_binding_to_an_unknown_host_fails(admin: Client, port: str) -> None:
    assert bind(admin, port, "sim-999")["binding:vif_type"] == "binding_failed"


def test_port_is_plugged_by_hand(cloud: Cloud, admin: Client, port: str) -> None:
    cloud.plug_mode("manual")
    try:
        bind(admin, port, "sim-001")
        cloud.plug(port, "sim-001")
        wait_until(lambda: status(admin, port) == "ACTIVE", "port is plugged")
        cloud.unplug(port)
        wait_until(lambda: status(admin, port) == "DOWN", "port is unplugged")
        cloud.plug(port, "sim-001")
        wait_until(lambda: status(admin, port) == "ACTIVE", "port is plugged again")
    finally:
        cloud.plug_mode("auto")


def test_hosts_are_replaced(cloud: Cloud, admin: Client, port: str) -> None:
    cloud.set_hosts("sim-001", "rack-7")
    try:
        assert bind(admin, port, "rack-7")["binding:vif_type"] == "ovs"
        wait_until(lambda: status(admin, port) == "ACTIVE", "port is ACTIVE")
        assert bind(admin, port, "sim-002")["binding:vif_type"] == "binding_failed"
    finally:
        cloud.set_hosts(*cloud.settings.hosts)
    assert bind(admin, port, "sim-002")["binding:vif_type"] == "ovs"


# -- Events for compute


def test_compute_receives_events_of_ports_and_volumes(cloud: Cloud, admin: Client, port: str) -> None:
    with compute(cloud) as events:

        def is_received(name: str, tag: str) -> bool:
            return any((event["name"], event["tag"]) == (name, tag) for event in events)

        bind(admin, port, "sim-001")
        wait_until(lambda: is_received("network-vif-plugged", port), "network-vif-plugged")
        image = next(image for image in admin.get("image", "/v2/images")["images"] if image["name"] == "tiny")
        volume = create_volume(admin, imageRef=image["id"])
        body = {"volume_uuid": volume, "instance_uuid": str(uuid.uuid4()), "connector": {"host": "sim-001"}}
        attachment = admin.post("block-storage", "/attachments", {"attachment": body})["attachment"]
        path = Path(attachment["connection_info"]["device_path"])
        assert path.read_bytes()[:4] == b"TTTT"
        admin.post("block-storage", f"/attachments/{attachment['id']}/action", {"os-complete": {}})
        admin.post("block-storage", f"/volumes/{volume}/action", {"os-extend": {"new_size": 2}})
        wait_until(lambda: is_received("volume-extended", volume), "volume-extended")
        assert path.stat().st_size == 2 << 30
        # As the compute service, which has a service token.
        token = {"X-Service-Token": cloud.client("kilonova", "service").token}
        admin.call("block-storage", "DELETE", f"/attachments/{attachment['id']}", headers=token)
        admin.delete("block-storage", f"/volumes/{volume}")
        bind(admin, port, "")


# -- Killed services


@pytest.mark.parametrize("service", ["keystone", "glance", "neutron", "cinder"])
def test_killed_service_keeps_its_state(cloud: Cloud, admin: Client, service: str) -> None:
    kind = {"keystone": "identity", "glance": "image", "neutron": "network", "cinder": "block-storage"}[service]
    volume = create_volume(admin)
    before = admin.get(kind, LISTS[kind])
    with cloud.killed(service):
        with pytest.raises(httpx.ConnectError):
            httpx.get(cloud.endpoints[kind], trust_env=False)
    after = admin.get(kind, LISTS[kind])
    assert after == before
    if service == "cinder":
        # Also the scheduler and the volume service work.
        admin.delete("block-storage", f"/volumes/{create_volume(admin)}")
    admin.delete("block-storage", f"/volumes/{volume}")


@pytest.mark.parametrize("service", ["postgres", "mariadb", "rabbitmq"])
def test_services_survive_a_killed_store(cloud: Cloud, admin: Client, port: str, service: str) -> None:
    with cloud.killed(service):
        pass
    for kind in LISTS:
        wait_until(partial(is_answering, admin, kind), f"{kind} answers")
    bind(admin, port, "sim-001")
    wait_until(lambda: status(admin, port) == "ACTIVE", "port is ACTIVE")
    admin.delete("block-storage", f"/volumes/{create_volume(admin)}")


def test_only_the_volume_service_is_killed(cloud: Cloud, admin: Client) -> None:
    with cloud.killed("cinder-volume"):
        volume = admin.post("block-storage", "/volumes", {"volume": {"size": 1}})["volume"]["id"]
        assert volume_status(admin, volume) == "creating"
    wait_until(lambda: volume_status(admin, volume) == "available", "volume is created after the restart")
    admin.delete("block-storage", f"/volumes/{volume}")


# -- Proxy in front of a service


def test_image_is_uploaded_and_read_through_a_proxy(cloud: Cloud, admin: Client) -> None:
    content = bytes(range(256)) * 40_000
    headers = {"X-Auth-Token": admin.token, "Content-Type": "application/octet-stream"}
    image = admin.post("image", "/v2/images", {"name": "proxied", "disk_format": "raw", "container_format": "bare"})
    path = f"/v2/images/{image['id']}/file"
    with Proxy(cloud.endpoints["image"]) as proxy, httpx.Client(base_url=proxy.url, headers=headers) as http:
        proxy.fail(503, matches("PUT"), times=1)
        assert [http.put(path, content=iter([content])).status_code for _ in range(2)] == [503, 204]
        assert http.get(path).content == content
        assert proxy.count(matches("PUT", "/file$")) == 2
    admin.delete("image", f"/v2/images/{image['id']}")
