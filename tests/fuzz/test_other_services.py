"""Schemathesis on the built-in identity, image, network and volume services."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kilonova.http import Api, openapi
from tests.fuzz.runner import add_known_values, fuzz
from tests.fuzz.support import fuzzed_cloud, new_database
from tests.support.cloud_process import Client

Names = dict[str, list[str]]


def document(api: Api, minor: int = 0) -> Any:
    """A copy, because `add_known_values` changes it."""
    return copy.deepcopy(openapi.build_document(api, minor))


def identity(client: Client) -> tuple[Any, Names]:
    from kilonova.identity import build

    def create(noun: str, **values: Any) -> str:
        answer = client.post("identity", f"/{noun}s", {noun: {"name": f"fuzz {noun}", **values}})
        assert answer.status == 201, answer.body
        return str(answer.json()[noun]["id"])

    domain = create("domain")
    project, user = create("project", domain_id=domain), create("user", domain_id=domain, password="fuzz")
    role = create("role")
    service = client.get("identity", "/services").json()["services"][0]["id"]
    endpoint = client.get("identity", "/endpoints").json()["endpoints"][0]["id"]
    return document(build()), {
        "domain_id": [domain],
        "project_id": [project],
        "default_project_id": [project],
        "parent_id": [domain, project],
        "user_id": [user],
        "role_id": [role],
        "implied_id": [role],
        "region_id": ["RegionOne"],
        "service_id": [service],
        "endpoint_id": [endpoint],
        "tag": ["fuzz"],
    }


def image(client: Client) -> tuple[Any, Names]:
    from kilonova.image import build

    created = client.post("image", "/images", {"name": "fuzz", "disk_format": "raw", "container_format": "bare"})
    assert created.status == 201, created.body
    existing = client.get("image", "/images").json()["images"][0]
    described = document(build())
    one = described["paths"]["/v2/images/{image_id}"]
    paths = [f"/{name}" for name in ("name", "tags", "tags/-", "min_ram", "owner", "own", "status", "locations/0")]
    operation = {
        "type": "object",
        "properties": {
            "op": {"enum": ["add", "replace", "remove", "move"]},
            "path": {"anyOf": [{"enum": paths}, {"type": "string"}]},
            "value": {},
        },
        "required": ["op", "path"],
    }
    patch = {"schema": {"type": "array", "items": operation}}
    one["patch"]["requestBody"] = {"content": {"application/openstack-images-v2.1-json-patch": patch}}
    data = {"schema": {"type": "string", "format": "binary"}}
    described["paths"]["/v2/images/{image_id}/file"]["put"]["requestBody"] = {
        "content": {"application/octet-stream": data}
    }
    ids = [existing["id"], created.json()["id"]]
    return described, {"image_id": ids, "member_id": [client.project_id], "tag": ["fuzz"], "name": ["image", "members"]}


def network(client: Client) -> tuple[Any, Names]:
    from kilonova.network import build

    def create(noun: str, **values: Any) -> str:
        answer = client.post("network", f"/{noun.replace('_', '-')}s", {noun: values})
        assert answer.status == 201, answer.body
        return str(answer.json()[noun]["id"])

    net = create("network", name="fuzz")
    subnet = create("subnet", network_id=net, cidr="10.99.0.0/24", ip_version=4)
    group = create("security_group", name="fuzz")
    outside = client.get("network", "/networks?router:external=True").json()["networks"][0]["id"]
    return document(build()), {
        "network_id": [net, outside],
        "floating_network_id": [outside],
        "subnet_id": [subnet],
        "port_id": [create("port", network_id=net)],
        "router_id": [create("router", name="fuzz")],
        "security_group_id": [group],
        "remote_group_id": [group],
        "security_group_rule_id": [create("security_group_rule", security_group_id=group, direction="ingress")],
        "floatingip_id": [create("floatingip", floating_network_id=outside)],
        "project_id": [client.project_id],
        "cidr": ["10.98.0.0/24", "10.98.0.0/31", "fd00::/64", "0.0.0.0/0", "::/0"],
        "ip_address": ["10.99.0.7", "10.99.0.0", "fd00::7"],
        "alias": ["quotas"],
        "tag": ["fuzz"],
    }


def volume(client: Client) -> tuple[Any, Names]:
    from kilonova.volume import build

    def create(noun: str, path: str, **values: Any) -> str:
        answer = client.post("volume", path, {noun: values})
        assert answer.status < 300, answer.body
        return str(answer.json()[noun]["id"])

    volumes = [create("volume", "/volumes", name="fuzz", size=size) for size in (1, 2)]
    kind = create("volume_type", "/types", name="fuzz")
    image_id = client.get("image", "/images").json()["images"][0]["id"]
    return document(build(), 71), {
        "volume_id": volumes,
        "source_volid": volumes,
        "volume_uuid": volumes,
        "imageRef": [image_id],
        "image_id": [image_id],
        "size": ["1"],
        "type_id": [kind],
        "volume_type": [kind, "fuzz"],
        "project_id": [client.project_id],
        "key": ["fuzz"],
        "name": ["default"],
    }


def share(client: Client) -> tuple[Any, Names]:
    from kilonova.share import build
    from kilonova.share.types import DEFAULT_ID

    shares = []
    for size in (1, 2):
        made = client.post("share", "/shares", {"share": {"share_proto": "NFS", "size": size, "name": "fuzz"}})
        assert made.status == 200, made.body
        shares.append(str(made.json()["share"]["id"]))
    lock = client.post("share", "/resource-locks", {"resource_lock": {"resource_id": shares[0]}}, headers=NEWEST_SHARE)
    assert lock.status == 200, lock.body
    return document(build(), 82), {
        "share_id": shares,
        "resource_id": shares,
        "location_id": shares,
        "lock_id": [lock.json()["resource_lock"]["id"]],
        "type_id": [DEFAULT_ID],
        "share_proto": ["NFS"],
        "access_type": ["ip"],
        "access_to": ["10.0.0.1", "fd00::/64"],
        "project_id": [client.project_id],
        "key": ["fuzz"],
        "size": ["1"],
    }


NEWEST_SHARE = {"X-OpenStack-Manila-API-Version": "2.82"}
VERSIONS = {"volume": "volume 3.71", "share": "shared-file-system 2.82"}


@pytest.mark.parametrize(
    "database, create_resources",
    [
        ("sqlite", identity),
        ("postgresql", image),
        ("postgresql", network),
        ("postgresql", volume),
        ("postgresql", share),
    ],
)
def test_no_server_errors(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database: str,
    create_resources: Callable[[Client], tuple[Any, Names]],
) -> None:
    server = request.getfixturevalue("postgresql_server") if database == "postgresql" else None
    with fuzzed_cloud(tmp_path / "data", new_database(server) if server else "") as cloud:
        client = cloud.client("kilonova")
        described, names = create_resources(client)
        add_known_values(described, names)
        service = create_resources.__name__
        url = client.endpoints[service].rpartition("/")[0]
        checks = "not_a_server_error"
        version = VERSIONS.get(service, "")
        fuzz(
            tmp_path,
            url,
            client,
            described,
            version=version,
            phases="coverage,fuzzing",
            examples=1,
            checks=checks,
        )
