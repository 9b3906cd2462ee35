"""Functional tests of openstacksdk: compute."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite(
    "sdk-compute", ("openstack/tests/functional/compute",), environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": "40"}
)
