"""Functional tests of openstacksdk: identity."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite(
    "sdk-identity", ("openstack/tests/functional/identity",), environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": "40"}
)
