"""Functional tests of python-novaclient, for which its `nova` runs in forks of a loaded process."""

from tests.client_suites.suite import PytestSuite
from tests.support.cloud_process import CloudProcess


def delete_public_network(cloud: CloudProcess) -> None:
    """Leave one network, so that servers can be created without naming one."""
    admin = cloud.client("kilonova")
    for router in admin.get("network", "/routers").json()["routers"]:
        body = {"router": {"external_gateway_info": None}}
        assert admin.put("network", f"/routers/{router['id']}", body).status == 200
    for network in admin.get("network", "/networks?router:external=true").json()["networks"]:
        assert admin.delete("network", f"/networks/{network['id']}").status == 204


SUITE = PytestSuite(
    "novaclient",
    ("novaclient/tests/functional",),
    prepare=delete_public_network,
    # The API filters actions by whole seconds.
    full_sleeps="test_instance_action",
    in_ci=r"v2/test_(aggregates|device_tagging|flavor|flavor_access|instances|migrations|resize|server_groups)\.py",
)
