"""The network proxy of openstacksdk against a real process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cloud_process import CloudProcess


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudProcess]:
    with CloudProcess(tmp_path_factory.mktemp("network") / "data", "--hosts", "1") as running:
        yield running


def connect(cloud: CloudProcess, name: str) -> Any:
    import openstack

    settings = cloud.clouds[name]
    return openstack.connect(auth=settings["auth"], region_name=settings["region_name"], identity_api_version="3")


def test_sdk_creates_and_deletes_network(cloud: CloudProcess) -> None:
    from openstack import exceptions

    demo = connect(cloud, "kilonova-demo").network
    assert sorted(network.name for network in demo.networks()) == ["private", "public"]
    network = demo.create_network(name="n")
    subnet = demo.create_subnet(network_id=network.id, cidr="10.9.0.0/24", ip_version=4)
    port = demo.create_port(network_id=network.id, name="p")
    assert port.fixed_ips == [{"subnet_id": subnet.id, "ip_address": "10.9.0.2"}]
    assert [found.id for found in demo.ports(network_id=network.id, fixed_ips="ip_address=10.9.0.2")] == [port.id]
    assert demo.update_port(port, name="q", description="d").name == "q"
    demo.set_tags(network, ["a", "b"])
    assert demo.get_network(network.id).tags == ["a", "b"]
    group = demo.create_security_group(name="web")
    demo.create_security_group_rule(
        security_group_id=group.id, direction="ingress", protocol="tcp", port_range_min=80, port_range_max=80
    )
    assert len(demo.get_security_group(group.id).security_group_rules) == 3
    public = demo.find_network("public")
    router = demo.create_router(name="r", external_gateway_info={"network_id": public.id})
    demo.add_interface_to_router(router, subnet=subnet.id)
    floating = demo.create_ip(floating_network_id=public.id, port_id=port.id)
    assert (floating.status, floating.fixed_ip_address) == ("ACTIVE", "10.9.0.2")
    with pytest.raises(exceptions.ConflictException, match="ports still in use"):
        demo.delete_network(network)
    demo.delete_ip(floating)
    route = {"destination": "10.10.0.0/16", "nexthop": "10.9.0.2"}
    assert demo.find_extension("extraroute-atomic")
    assert demo.add_extra_routes_to_router(router, {"router": {"routes": [route]}}).routes == [route]
    with pytest.raises(exceptions.ConflictException, match="required by one or more routes"):
        demo.remove_interface_from_router(router, subnet=subnet.id)
    assert demo.remove_extra_routes_from_router(router, {"router": {"routes": [route]}}).routes == []
    demo.remove_interface_from_router(router, subnet=subnet.id)
    demo.delete_router(router)
    demo.delete_port(port)
    demo.delete_security_group(group)
    demo.delete_network(network)
    with pytest.raises(exceptions.NotFoundException, match="could not be found"):
        demo.get_network(network.id)


def test_sdk_follows_pages_and_reads_other_resources(cloud: CloudProcess) -> None:
    connection, admin = connect(cloud, "kilonova-demo"), connect(cloud, "kilonova").network
    demo = connection.network
    created = [demo.create_network(name=f"x{number}") for number in range(5)]
    assert len(list(demo.networks(limit=2))) == 7
    assert demo.get_quota(connection.current_project_id, details=True).networks["used"] == 5
    assert demo.find_extension("router").alias == "router"
    assert {zone.name for zone in demo.availability_zones()} == {"nova"}
    assert list(admin.agents()) == []
    assert "private" in [item.network_name for item in admin.network_ip_availabilities()]
    assert demo.validate_auto_allocated_topology().id == "dry-run=pass"
    topology = demo.get_auto_allocated_topology()
    assert demo.get_network(topology.id).name == "auto_allocated_network"
    demo.delete_auto_allocated_topology(connection.current_project_id)
    for network in created:
        demo.delete_network(network)


def test_sdk_creates_and_activates_port_binding(cloud: CloudProcess) -> None:
    admin = connect(cloud, "kilonova").network
    assert admin.find_extension("binding-extended").alias == "binding-extended"
    network = admin.create_network(name="moving")
    port = admin.create_port(network_id=network.id, binding_host_id="h1")
    created = admin.create_port_binding(port, host="h2", profile={"a": 1})
    assert (created.host, created.status, created.vif_type, created.profile) == ("h2", "INACTIVE", "bridge", {"a": 1})
    assert admin.activate_port_binding(port, host="h2") is not None
    assert {(found.host, found.status) for found in admin.port_bindings(port)} == {("h2", "ACTIVE"), ("h1", "INACTIVE")}
    assert [found.host for found in admin.port_bindings(port, status="INACTIVE")] == ["h1"]
    assert admin.get_port(port.id).binding_host_id == "h2"
    admin.delete_port_binding(port, host="h1", ignore_missing=False)
    assert [found.host for found in admin.port_bindings(port)] == ["h2"]
    admin.delete_port(port)
    admin.delete_network(network)
