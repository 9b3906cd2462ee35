"""Functional tests of openstacksdk: network."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite(
    "sdk-network", ("openstack/tests/functional/network",), environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": "40"}
)
