"""Functional tests of openstacksdk: network."""

from tests.client_suites import openstacksdk

SUITE = openstacksdk.suite(
    "network", in_ci=r"test_(floating_ip|network|port|quota|router|security_group|security_group_rule|subnet)\.py"
)
