"""Functional tests of openstacksdk: placement."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite(
    "sdk-placement", ("openstack/tests/functional/placement",), environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": "40"}
)
