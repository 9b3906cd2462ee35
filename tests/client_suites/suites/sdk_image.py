"""Functional tests of openstacksdk: image."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite(
    "sdk-image",
    ("openstack/tests/functional/image",),
    # The tests upload this file of openstacksdk's repository.
    files=("CONTRIBUTING.rst",),
    environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": "40"},
)
