"""Functional tests of openstacksdk: block_storage."""

from tests.client_suites import openstacksdk

SUITE = openstacksdk.suite("block_storage", in_ci=".")
