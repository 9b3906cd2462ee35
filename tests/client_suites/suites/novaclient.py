"""Functional tests of python-novaclient, for which its `nova` runs in forks of a loaded process."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite(
    "novaclient",
    ("novaclient/tests/functional",),
    # The API filters actions by whole seconds.
    full_sleeps="test_instance_action",
)
