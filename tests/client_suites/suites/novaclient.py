"""Functional tests of python-novaclient, for which its `nova` runs in forks of a loaded process."""

from tests.client_suites.suite import PytestSuite

SUITE = PytestSuite("novaclient", ("novaclient/tests/functional",))
