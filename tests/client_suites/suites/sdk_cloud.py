"""Functional tests of openstacksdk: cloud."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite(
    "sdk-cloud", ("openstack/tests/functional/cloud",), environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": "40"}
)
