"""Functional tests of openstacksdk: compute."""

from tests.client_suites import openstacksdk

SUITE = openstacksdk.suite("compute", in_ci=".")
