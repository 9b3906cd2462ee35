"""Functional tests of openstacksdk: image."""

from tests.client_suites import openstacksdk

# The tests upload this file of openstacksdk's repository.
SUITE = openstacksdk.suite("image", files=("CONTRIBUTING.rst",), in_ci=".")
