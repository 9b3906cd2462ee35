"""Writes a clouds.yaml with the names of clouds that devstack has and that functional tests expect."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tests.support.cloud_process import Client, CloudProcess

ALT_NAME = "alt_demo"


def write(cloud: CloudProcess, path: Path) -> None:
    clouds = cloud.clouds
    create_alt_user(cloud.client("kilonova"))
    alt = deepcopy(clouds["kilonova-demo"])
    alt["auth"].update(username=ALT_NAME, password=ALT_NAME, project_name=ALT_NAME)
    named = {
        "devstack": clouds["kilonova-demo"],
        "devstack-alt": alt,
        "devstack-admin": clouds["kilonova"],
        "devstack-system-admin": clouds["kilonova-system"],
        # novaclient's
        "functional_admin": clouds["kilonova"],
    }
    functional = {"image_name": "cirros-sim", "flavor_name": "m1.tiny"}
    path.write_text(
        yaml.safe_dump(
            {"clouds": {name: with_domain_ids(each) for name, each in named.items()}, "functional": functional}
        )
    )


def create_alt_user(admin: Client) -> None:
    """Create a second user with a project of its own."""
    body: dict[str, Any] = {"project": {"name": ALT_NAME, "domain_id": "default"}}
    project = admin.post("auth_url", "/projects", body).json()["project"]["id"]
    body = {"user": {"name": ALT_NAME, "password": ALT_NAME, "domain_id": "default", "default_project_id": project}}
    user = admin.post("auth_url", "/users", body).json()["user"]["id"]
    for role in admin.get("auth_url", "/roles").json()["roles"]:
        if role["name"] in {"member", "reader"}:
            answer = admin.request("PUT", "auth_url", f"/projects/{project}/users/{user}/roles/{role['id']}")
            assert answer.status == 204, answer.body


def with_domain_ids(cloud: dict[str, Any]) -> dict[str, Any]:
    """The cloud with its domains by their ids, as novaclient's tests read them."""
    # openstacksdk's tests of volumes ask for this old type of service, which openstacksdk does not look up otherwise.
    cloud = {**deepcopy(cloud), "has_volume": True}
    for noun in ("user", "project"):
        if cloud["auth"].pop(f"{noun}_domain_name", None):
            cloud["auth"][f"{noun}_domain_id"] = "default"
    return cloud
