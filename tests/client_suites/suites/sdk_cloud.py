"""Functional tests of openstacksdk: cloud."""

from tests.client_suites import openstacksdk

SUITE = openstacksdk.suite("cloud", in_ci=".")
