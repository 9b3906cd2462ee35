"""Installs, configures, starts and stops real OpenStack services on this machine, for tests."""

from tests.openstack.cloud.cloud import Cloud
from tests.openstack.cloud.processes import CloudError
from tests.openstack.cloud.settings import Settings

__all__ = ["Cloud", "CloudError", "Settings"]
