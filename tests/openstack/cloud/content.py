"""What a first start puts into the cloud: users, the catalogue, images, networks and types of volumes.

Every function leaves what exists as it is, so a start that was interrupted is completed by the next.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from tests.openstack.cloud.client import Client
from tests.openstack.cloud.services import Command, program
from tests.openstack.cloud.settings import COMPUTE_USER, PASSWORD, REGION, Settings

ROLES = ("admin", "manager", "member", "reader", "service")
# User, project, roles.
USERS = (
    ("admin", "demo", ("admin",)),
    ("demo", "demo", ("member", "reader")),
    ("demo-reader", "demo", ("reader",)),
    ("demo-manager", "demo", ("manager", "member", "reader")),
    ("demo-admin", "demo", ("admin", "manager", "member", "reader")),
    *((name, "service", ("admin", "service")) for name in ("glance", "neutron", "cinder")),
)
# Two images with different bytes, to distinguish a volume before and after it is re-imaged.
RAW_IMAGES = {"tiny": b"T", "other": b"O"}
IMAGE_BYTES = 1 << 20
VOLUME_TYPES: dict[str, dict[str, str]] = {
    "local": {"volume_backend_name": "local"},
    "multiattach": {"volume_backend_name": "local", "multiattach": "<is> True"},
    "nfs": {"volume_backend_name": "nfs"},
}


class Identity:
    """Finds or creates projects, roles, users, services and endpoints."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _find_or_create(self, kind: str, name: str, filters: str = "", **values: object) -> dict[str, Any]:
        found = self._client.get("identity", f"/{kind}s?name={name}{filters}")[f"{kind}s"]
        if found:
            return dict(found[0])
        return dict(self._client.post("identity", f"/{kind}s", {kind: {"name": name, **values}})[kind])

    def project(self, name: str) -> str:
        return str(self._find_or_create("project", name, "&domain_id=default", domain_id="default")["id"])

    def role(self, name: str) -> str:
        return str(self._find_or_create("role", name)["id"])

    def user(self, name: str, project: str, roles: Sequence[str]) -> None:
        """A user with roles in a project, which is the default one of a new user."""
        values = {"domain_id": "default", "password": PASSWORD, "default_project_id": self.project(project)}
        user = self._find_or_create("user", name, "&domain_id=default", **values)["id"]
        for role in roles:
            self._client.put("identity", f"/projects/{self.project(project)}/users/{user}/roles/{self.role(role)}")

    def service(self, kind: str, name: str, url: str) -> None:
        """A service with an endpoint for each interface. An endpoint with another URL is changed."""
        found = self._client.get("identity", f"/services?type={kind}")["services"]
        service = (
            found[0]
            if found
            else self._client.post("identity", "/services", {"service": {"type": kind, "name": name}})["service"]
        )
        endpoints = self._client.get("identity", f"/endpoints?service_id={service['id']}")["endpoints"]
        for interface in ("public", "internal", "admin"):
            endpoint = next((endpoint for endpoint in endpoints if endpoint["interface"] == interface), None)
            if endpoint is None:
                values = {"service_id": service["id"], "interface": interface, "url": url, "region_id": REGION}
                self._client.post("identity", "/endpoints", {"endpoint": values})
            elif endpoint["url"] != url:
                self._client.patch("identity", f"/endpoints/{endpoint['id']}", {"endpoint": {"url": url}})


def create_users(client: Client) -> None:
    identity = Identity(client)
    for role in ROLES:
        identity.role(role)
    for name, project, roles in USERS:
        identity.user(name, project, roles)


def create_catalogue(client: Client) -> None:
    identity = Identity(client)
    endpoints = client.settings.endpoints
    identity.service("identity", "keystone", endpoints["identity"])
    identity.service("image", "glance", endpoints["image"])
    identity.service("network", "neutron", endpoints["network"])
    identity.service("block-storage", "cinder", endpoints["block-storage"])
    identity.service("volumev3", "cinderv3", f"{endpoints['block-storage']}/%(project_id)s")


def register_compute(client: Client, url: str) -> None:
    """Create the user and the catalogue entries of compute and placement below this URL.

    This is for tests without Kilonova. `kilonova register` does the same.
    """
    identity = Identity(client)
    identity.user(COMPUTE_USER, "service", ("admin", "service"))
    identity.service("compute", "kilonova", f"{url}/compute/v2.1")
    identity.service("placement", "placement", f"{url}/placement")


def create_images(client: Client) -> None:
    existing = {image["name"] for image in client.get("image", "/v2/images")["images"]}
    for name, letter in RAW_IMAGES.items():
        if name not in existing:
            upload_image(client, letter * IMAGE_BYTES, name=name, visibility="public")
    if "tiny-qcow2" not in existing:
        image = _qcow2(client.settings, RAW_IMAGES["tiny"] * IMAGE_BYTES)
        upload_image(client, image, name="tiny-qcow2", disk_format="qcow2", visibility="public")


def upload_image(client: Client, content: bytes, store: str | None = None, **values: object) -> dict[str, Any]:
    """Create an image and upload its content. Returns the active image."""
    values = {"disk_format": "raw", "container_format": "bare", **values}
    image = client.post("image", "/v2/images", values)["id"]
    headers = {"Content-Type": "application/octet-stream"}
    if store is not None:
        headers["X-Image-Meta-Store"] = store
    client.call("image", "PUT", f"/v2/images/{image}/file", content=content, headers=headers)
    return dict(client.get("image", f"/v2/images/{image}"))


def _qcow2(settings: Settings, content: bytes) -> bytes:
    source, target = (settings.state / f"tmp-image.{name}" for name in ("raw", "qcow2"))
    source.write_bytes(content)
    try:
        command: Command = [program("qemu-img"), "convert", "-q", "-f", "raw", "-O", "qcow2", source, target]
        subprocess.run(command, check=True)
        return target.read_bytes()
    finally:
        source.unlink()
        target.unlink(missing_ok=True)


def create_networks(client: Client) -> None:
    """An external network, a network for all projects, and a default pool for the subnets of projects."""
    networks = {network["name"] for network in client.get("network", "/v2.0/networks")["networks"]}
    if "public" not in networks:
        provider = {"provider:network_type": "flat", "provider:physical_network": "physnet1"}
        external = {"router:external": True, "is_default": True, **provider}
        _create_network(client, "public", external, {"cidr": "203.0.113.0/24", "enable_dhcp": False})
    if "shared" not in networks:
        _create_network(client, "shared", {"shared": True}, {"cidr": "192.0.2.0/24"})
    if not client.get("network", "/v2.0/subnetpools?name=default")["subnetpools"]:
        size = {"prefixes": ["10.64.0.0/12"], "default_prefixlen": 24}
        pool = {"name": "default", "shared": True, "is_default": True, **size}
        client.post("network", "/v2.0/subnetpools", {"subnetpool": pool})


def _create_network(client: Client, name: str, values: dict[str, object], subnet: dict[str, object]) -> None:
    network = client.post("network", "/v2.0/networks", {"network": {"name": name, **values}})["network"]["id"]
    values = {"network_id": network, "name": name, "ip_version": 4, **subnet}
    client.post("network", "/v2.0/subnets", {"subnet": values})


def create_volume_types(client: Client) -> None:
    existing = {kind["name"] for kind in client.get("block-storage", "/types?is_public=None")["volume_types"]}
    for name, specs in VOLUME_TYPES.items():
        if name not in existing:
            client.post("block-storage", "/types", {"volume_type": {"name": name, "extra_specs": specs}})
