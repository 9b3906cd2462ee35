"""Functional tests of openstacksdk: placement."""

from tests.client_suites import openstacksdk
from tests.support.cloud_process import CloudProcess


def boot_server(cloud: CloudProcess) -> None:
    """Boot a server of the administrator: openstacksdk cannot read the usages of a project without any."""
    admin = cloud.client("kilonova")
    admin.wait(admin.boot(), status="ACTIVE")


SUITE = openstacksdk.suite("placement", prepare=boot_server, in_ci=".")
