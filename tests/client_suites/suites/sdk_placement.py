"""Functional tests of openstacksdk: placement."""

from tests.client_suites.suite import PytestSuite
from tests.support.cloud_process import CloudProcess


def boot_server(cloud: CloudProcess) -> None:
    """Boot a server of the administrator: openstacksdk cannot read the usages of a project without any."""
    admin = cloud.client("kilonova")
    admin.wait(admin.boot(), status="ACTIVE")


SUITE = PytestSuite(
    "sdk-placement",
    ("openstack/tests/functional/placement",),
    prepare=boot_server,
    environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": "40"},
)
