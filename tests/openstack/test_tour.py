"""The tour of the README by the stock client, with users, images, networks and volumes of the real services."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.clients.test_tour import EXPECTED, VENV, check_shown, run_lines, tour_blocks
from tests.openstack.kilonova_process import Kilonova

USERS = {
    "kilonova": ("admin", "admin"),
    "kilonova-demo": ("demo", "demo"),
    "kilonova-demo-admin": ("demo-admin", "demo"),
}


@pytest.fixture
def _tour_resources(kilonova: Kilonova) -> None:
    """The image and the network that a new Kilonova has by itself."""
    admin = kilonova.admin
    if not admin.get("image", "/images?name=cirros-sim").json()["images"]:
        body = {"name": "cirros-sim", "disk_format": "raw", "container_format": "bare", "visibility": "public"}
        image = admin.post("image", "/images", body).json()
        assert admin.request("PUT", "image", f"/images/{image['id']}/file", content=b"disk" * 1024).status == 204
    if not admin.get("network", "/networks?name=private").json()["networks"]:
        network = admin.post("network", "/networks", {"network": {"name": "private", "shared": True}}).json()["network"]
        subnet = {"network_id": network["id"], "ip_version": 4, "cidr": "10.0.0.0/16", "name": "private-subnet"}
        assert admin.post("network", "/subnets", {"subnet": subnet}).status == 201


@pytest.mark.usefixtures("_tour_resources")
def test_readme_tour(kilonova: Kilonova, tmp_path: Path, openstack: Path) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "openstack").symlink_to(openstack)
    (programs / "kilonova").symlink_to(VENV / "bin" / "kilonova")
    (tmp_path / "data").symlink_to(kilonova.data)
    # The cloud's own clouds.yaml has only its service user.
    clouds = {
        name: {"auth": kilonova.cloud.auth(*user), "region_name": "RegionOne", "identity_api_version": 3}
        for name, user in USERS.items()
    }
    (tmp_path / "clouds.yaml").write_text(json.dumps({"clouds": clouds}))
    blocks = tour_blocks()
    lines = [line.replace("data/clouds.yaml", "clouds.yaml") for block in blocks for line in block]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OS_")} | kilonova.environ
    code, output, errors = run_lines(lines, tmp_path, environ, kilonova.wait_until_idle)
    assert code == 0, output + errors
    shown = dict(zip(lines, re.split(r"^\$ .*\n", output, flags=re.MULTILINE)[1:], strict=True))
    for expected in EXPECTED:
        check_shown(shown, expected)
    assert kilonova.admin.get("compute", "/servers?all_tenants=1").json()["servers"] == []
    assert kilonova.leftovers() == []
