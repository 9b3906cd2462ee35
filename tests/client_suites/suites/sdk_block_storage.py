"""Functional tests of openstacksdk: block_storage."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite(
    "sdk-block-storage", ("openstack/tests/functional/block_storage",), environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": "40"}
)
