"""Functional tests of openstacksdk: identity."""

from tests.client_suites import openstacksdk

SUITE = openstacksdk.suite("identity", in_ci=".")
