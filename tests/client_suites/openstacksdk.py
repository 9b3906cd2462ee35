"""The suites of openstacksdk, one for each directory of its functional tests."""

from __future__ import annotations

from typing import Any

from tests.client_suites.suite import PytestSuite

TIMEOUT_SECONDS = "40"


def suite(directory: str, **options: Any) -> PytestSuite:
    return PytestSuite(
        f"sdk-{directory.replace('_', '-')}",
        (f"openstack/tests/functional/{directory}",),
        environ={"OPENSTACKSDK_FUNC_TEST_TIMEOUT": TIMEOUT_SECONDS},
        has_commands=False,
        **options,
    )
