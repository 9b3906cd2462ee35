"""Functional tests of python-openstackclient, for which its `openstack` runs in forks of a loaded process."""

from tests.client_suites.suite import PytestSuite
from tests.support.cloud_process import CloudProcess

# Object storage, accelerators and volumes by version 2 of the API do not exist here.
DIRECTORIES = ("common", "compute", "identity/v3", "image", "network", "volume/v3")


def create_image(cloud: CloudProcess) -> None:
    """Create the image that the tests boot: the first whose name is like that of devstack."""
    admin = cloud.client("kilonova")
    body = {"name": "cirros-sim-disk", "disk_format": "raw", "container_format": "bare", "visibility": "public"}
    image = admin.post("image", "/images", body).json()
    answer = admin.request("PUT", "image", f"/images/{image['id']}/file", content=b"\0" * 65536)
    assert answer.status == 204, answer.body


def set_default_volume_type(cloud: CloudProcess) -> None:
    """Give the default volume type the name that it has in devstack."""
    admin = cloud.client("kilonova")
    name = "lvmdriver-1"
    assert admin.post("volume", "/types", {"volume_type": {"name": name}}).status == 200
    path, body = f"/default-types/{admin.project_id}", {"default_type": {"volume_type": name}}
    answer = admin.put("volume", path, body, version="3.62")
    assert answer.status == 200, answer.body


def prepare(cloud: CloudProcess) -> None:
    create_image(cloud)
    set_default_volume_type(cloud)


SUITE = PytestSuite(
    "openstackclient",
    tuple(f"openstackclient/tests/functional/{directory}" for directory in DIRECTORIES),
    prepare=prepare,
    # Some tests expect that servers are created in different seconds.
    settings={"KILONOVA_SIM__LATENCY__SPAWN": "1.2"},
    in_ci=r"compute/v2/test_(flavor|hypervisor|keypair|server_group)\.py|network/v2/test_security_group",
)
