"""Functional tests of openstacksdk: network."""

from tests.client_suites import openstacksdk

SUITE = openstacksdk.suite("network", in_ci=".")
