"""The network client against the built-in service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kilonova.http.client import ClientResponse, InProcess, Unreachable
from kilonova.network.client import NetworkClient, NetworkError, Port
from tests.network.support import net
from tests.support.cloud import DEMO, OTHER


def test_client_manages_networks_and_ports(database_url: str) -> None:
    async def scenario() -> None:
        async with net(database_url) as cloud:
            client = NetworkClient(InProcess(cloud.app, "/network"))
            assert await client.available_networks(DEMO, "member") == []
            auto = await client.auto_allocate(DEMO, "member")
            shared = await cloud.create("network", "admin", name="shared", shared=True)
            await cloud.create("network", "other", name="theirs")
            for token in ("member", "project-admin"):
                found = await client.available_networks(DEMO, token)
                assert [network.name for network in found] == ["auto_allocated_network", "shared"]
            assert [network.id for network in await client.networks([auto.id, OTHER], "member")] == [auto.id]
            assert await client.network(OTHER, "member") is None
            assert await client.port(OTHER, "member") is None
            assert await client.create_ports([], "service") == []
            wanted = {"network_id": auto.id, "project_id": DEMO, "device_id": "s"}
            ports = await client.create_ports([{**wanted, "name": name} for name in "ab"], "service")
            assert [(await cloud.show("port", port.id))["name"] for port in ports] == ["a", "b"]
            bound = await client.update_port(ports[0].id, {"binding:host_id": "h"}, "service")
            assert (bound.status, bound.binding_host_id, bound.binding_vif_type) == ("ACTIVE", "h", "bridge")
            assert len(await client.ports_of_device("s", DEMO, "service")) == 2
            assert await client.ports_of_device("s", "other", "service") == []
            await client.delete_ports([ports[0].id, ports[1].id, OTHER], "service")
            assert await client.ports_of_device("s", DEMO, "service") == []
            (group,) = await client.security_groups(DEMO, "member")
            assert group.name == "default"
            assert {rule.direction for rule in group.rules} == {"egress", "ingress"}
            with pytest.raises(NetworkError) as refused:
                await client.create_ports(
                    [{"network_id": shared["id"], "fixed_ips": [{"ip_address": "9.9.9.9"}]}], "admin"
                )
            assert (refused.value.status, refused.value.kind) == (400, "InvalidIpForNetwork")
            assert "9.9.9.9" in str(refused.value)
            await cloud.db.close()
            with pytest.raises(Unreachable):
                await client.available_networks(DEMO, "member")

    asyncio.run(scenario())


class FixedResponse(InProcess):
    """Answers every request with the same body."""

    def __init__(self, body: bytes) -> None:
        super().__init__(None)
        self.body = body

    async def request(self, method: str, path: str, **options: Any) -> ClientResponse:
        return ClientResponse(200, {}, self.body)


def test_client_reads_ports_of_service_without_extensions() -> None:
    """Such a service omits bindings, port security and revisions. Unknown attributes are ignored."""
    body = b'{"port": {"id": "p", "network_id": "n", "mac_address": "m", "device_id": "", "new": {"x": 1}}}'
    port = asyncio.run(NetworkClient(FixedResponse(body)).port("p", "token"))
    assert port == Port(id="p", network_id="n", mac_address="m")
    assert (port.binding_host_id, port.binding_vnic_type, port.port_security_enabled) == ("", "normal", True)
    assert port.revision_number is None


def test_client_reads_attributes_that_are_null() -> None:
    body = (
        b'{"port": {"id": "p", "network_id": "n", "mac_address": "m", "port_security_enabled": null, '
        b'"binding:host_id": null, "binding:vif_type": null, "binding:profile": null}}'
    )
    port = asyncio.run(NetworkClient(FixedResponse(body)).port("p", "token"))
    assert port is not None
    assert (port.binding_host_id, port.binding_profile, port.port_security_enabled) == (None, None, None)


def test_client_reads_all_pages() -> None:
    path = "/v2.0/ports?device_id=s&project_id=p"
    pages = {
        path: b'{"ports": [{"id": "a", "network_id": "n", "mac_address": "m"}], "ports_links": '
        b'[{"rel": "next", "href": "http://public:9696%s&marker=a"}]}' % path.encode(),
        f"{path}&marker=a": b'{"ports": [{"id": "b", "network_id": "n", "mac_address": "m"}], '
        b'"ports_links": [{"rel": "previous", "href": "http://public:9696/v2.0/ports"}]}',
    }

    class Pages(FixedResponse):
        async def request(self, method: str, path: str, **options: Any) -> ClientResponse:
            return ClientResponse(200, {}, pages[path])

    found = asyncio.run(NetworkClient(Pages(b"")).ports_of_device("s", "p", "token"))
    assert [port.id for port in found] == ["a", "b"]


@pytest.mark.parametrize("body", [b"no json", b"{}", b'{"port": {"id": null}}'])
def test_invalid_response_is_unreachable(body: bytes) -> None:
    with pytest.raises(Unreachable, match="the network service sent an invalid response"):
        asyncio.run(NetworkClient(FixedResponse(body)).port("p", "token"))


class StartingService(InProcess):
    """For its first `denials` responses, denies the existence of everything, as a Neutron that has just started."""

    def __init__(self, app: Any, denials: int) -> None:
        super().__init__(app, "/network")
        self.denials = denials
        self.paths: list[str] = []

    async def request(self, method: str, path: str, **options: Any) -> ClientResponse:
        self.paths.append(path)
        response = await super().request(method, path, **options)
        self.denials -= 1
        if self.denials < 0:
            return response
        noun = path.removeprefix("/v2.0/").partition("?")[0]
        if "/" in noun:
            return ClientResponse(404, {}, b'{"NeutronError": {"type": "PortNotFound", "message": "not found"}}')
        return ClientResponse(200, {}, b'{"%s": []}' % noun.replace("-", "_").encode())


@pytest.mark.parametrize("denials", [1, 2])
def test_absence_is_confirmed_by_a_service_that_has_started(sqlite_url: str, denials: int) -> None:
    """With one denial, the service has started when it is asked whether it has; with two, it has not."""

    async def scenario() -> None:
        async with net(sqlite_url) as cloud:
            network = await cloud.create("network", "member", name="own")
            body = {"network_id": network["id"], "project_id": DEMO, "device_id": "s"}
            port = await NetworkClient(InProcess(cloud.app, "/network")).create_port(body, "service")

            def starting(requests: int = 1) -> NetworkClient:
                """A client that sends this number of requests before it doubts."""
                return NetworkClient(StartingService(cloud.app, denials + requests - 1), built_in=False)

            async def ids(find: Any) -> list[str]:
                if denials == 1:
                    return [each.id for each in await find]
                with pytest.raises(Unreachable, match="has not started"):
                    await find
                return []

            expected = {"network": [network["id"]], "port": [port.id]} if denials == 1 else {"network": [], "port": []}
            assert await ids(starting().networks([network["id"]], "member")) == expected["network"]
            assert await ids(starting(2).available_networks(DEMO, "member")) == expected["network"]
            assert await ids(starting().ports([port.id], "service")) == expected["port"]
            assert await ids(starting().ports_of_device("s", DEMO, "service")) == expected["port"]
            if denials == 1:
                found = await starting().port(port.id, "service")
                assert found is not None
                assert found.id == port.id
                await starting().delete_port(port.id, "service")
                assert await NetworkClient(InProcess(cloud.app, "/network")).port(port.id, "service") is None
            else:
                with pytest.raises(Unreachable):
                    await starting().delete_port(port.id, "service")

    asyncio.run(scenario())


def test_absence_that_is_expected_is_not_confirmed(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with net(sqlite_url) as cloud:
            service = StartingService(cloud.app, 0)
            client = NetworkClient(service, built_in=False)
            assert await client.ports_of_device("s", DEMO, "service", expected=0) == []
            assert len(service.paths) == 1
            assert await client.port(OTHER, "service") is None
            assert len(service.paths) == 4
            service.paths.clear()
            built_in = NetworkClient(service)
            assert await built_in.port(OTHER, "service") is None
            assert len(service.paths) == 1

    asyncio.run(scenario())
