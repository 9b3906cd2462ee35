"""Steps for a single interface: repeated steps, ports of other servers, and errors of the network service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.compute.operations.steps import interfaces
from kilonova.compute.operations.steps.server import server_of
from kilonova.compute.servers import model
from kilonova.compute.servers.requested_networks import RequestedInterface
from kilonova.http.client import InProcess
from kilonova.ids import new_id
from kilonova.network.client import NetworkClient, NetworkError
from kilonova.operations import Failed, TransientError
from tests.compute.servers.support import make_interface
from tests.network.support import Net, net
from tests.support import run
from tests.support.cloud import DEMO, Identity, put_server

SERVER = "5e4e4000-0000-4000-8000-000000000001"
OTHER_SERVER = "5e4e4000-0000-4000-8000-000000000002"
OPERATION = "09e4a000-0000-4000-8000-000000000001"


class Interfaces:
    """A network, and an operation of a server."""

    def __init__(self, cloud: Net, network_id: str) -> None:
        self.cloud = cloud
        self.network_id = network_id
        network = NetworkClient(InProcess(cloud.app, "/network"))
        self.op: Any = SimpleNamespace(
            is_first_try=True,
            services=SimpleNamespace(network=network, identity=Identity()),
            db=cloud.db,
            id=OPERATION,
            server_id=SERVER,
            project_id=DEMO,
        )

    async def create_port(self, owner: str = "", host: str = "") -> str:
        wanted = {"network_id": self.network_id, "project_id": DEMO, "device_id": owner, "binding:host_id": host}
        return str((await self.cloud.create("port", "service", **wanted))["id"])

    async def show(self, port_id: str) -> tuple[str, str, str]:
        """Device, its owner, and the host of the binding."""
        port = await self.cloud.show("port", port_id, "admin")
        return port["device_id"], port["device_owner"], port["binding:host_id"]

    async def port_ids(self) -> set[str]:
        return {port["id"] for port in await self.cloud.list_all("port", as_="admin")}


@asynccontextmanager
async def opened_interfaces(database_url: str) -> AsyncIterator[Interfaces]:
    async with net(database_url) as cloud:
        network, _ = await cloud.network_with_subnet()
        yield Interfaces(cloud, network["id"])


def test_repeated_make_port_finds_created_port(database_url: str) -> None:
    async def scenario() -> None:
        async with opened_interfaces(database_url) as i:
            requested = RequestedInterface(i.network_id, "n", fixed_ip="10.1.0.77")
            port_id = await interfaces.make_port(i.op, requested)
            assert await interfaces.make_port(i.op, requested) == port_id
            assert await i.port_ids() == {port_id}
            port = await i.cloud.show("port", port_id, "admin")
            assert (port["project_id"], port["device_id"]) == (DEMO, OPERATION)
            assert [address["ip_address"] for address in port["fixed_ips"]] == ["10.1.0.77"]

    run(scenario())


def test_take_port_binds_port_to_server(database_url: str) -> None:
    """Also a port of the operation, which `make_port` has created, and of the server after a lost response."""

    async def scenario() -> None:
        async with opened_interfaces(database_url) as i:
            for owner in ("", OPERATION, SERVER):
                port_id = await i.create_port(owner)
                assert (await interfaces.take_port(i.op, port_id, "a")).id == port_id
                assert await i.show(port_id) == (SERVER, interfaces.OWNER, "a")

    run(scenario())


def test_port_of_another_server_or_missing_port_is_refused(database_url: str) -> None:
    async def scenario() -> None:
        async with opened_interfaces(database_url) as i:
            port_id, missing_id = await i.create_port(OTHER_SERVER, "b"), new_id()
            before = await i.show(port_id)
            for refused, message, fault in (
                (port_id, f"Port {port_id} is still in use.", "409 PortInUse"),
                (missing_id, f"Port id {missing_id} could not be found.", "404 PortNotFound"),
            ):
                with pytest.raises(Failed) as failure:
                    await interfaces.take_port(i.op, refused, "a")
                assert str(failure.value) == message
                assert failure.value.fault == f"the network service answered {fault}: {refused}"
            assert await i.show(port_id) == before

    run(scenario())


def test_port_taken_by_another_server_meanwhile_stays_there(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server takes the port between the read and the update. The repeated step finds the port in use."""

    async def scenario() -> None:
        async with opened_interfaces(sqlite_url) as i:
            port_id, network = await i.create_port(), i.op.services.network
            read = network.port

            async def read_before_other(*args: Any) -> Any:
                port = await read(*args)
                await i.cloud.update("port", {"id": port.id}, "service", device_id=OTHER_SERVER)
                return port

            with monkeypatch.context() as patch:
                patch.setattr(network, "port", read_before_other)
                with pytest.raises(TransientError):
                    await interfaces.take_port(i.op, port_id, "a")
            with pytest.raises(Failed, match="is still in use"):
                await interfaces.take_port(i.op, port_id, "a")
            assert (await i.show(port_id))[0] == OTHER_SERVER

    run(scenario())


def test_release_and_delete_ignore_ports_of_others(database_url: str) -> None:
    async def scenario() -> None:
        async with opened_interfaces(database_url) as i:
            own, foreign = await i.create_port(SERVER, "a"), await i.create_port(OTHER_SERVER, "b")
            before = await i.show(foreign)
            for port_id in (own, own, foreign, new_id()):
                await interfaces.release_port(i.op, port_id, "")
            assert await i.show(own) == ("", "", "")
            assert await i.show(foreign) == before
            held = await i.create_port(SERVER, "a")
            await interfaces.release_port(i.op, held, OPERATION)
            assert await i.show(held) == (OPERATION, interfaces.OWNER, "")
            for port_id in (own, foreign, new_id(), None):
                await interfaces.delete_ports(i.op, OPERATION, port_id)
            assert await i.port_ids() == {own, foreign}, "only the port of the operation is deleted"
            last = await i.create_port(SERVER, "a")
            await interfaces.delete_ports(i.op, OPERATION, last)
            assert await i.port_ids() == {own, foreign}

    run(scenario())


@pytest.mark.parametrize(("status", "error"), [(412, TransientError), (409, Failed), (403, Failed)])
def test_errors_of_network_service(status: int, error: type[Exception]) -> None:
    async def scenario() -> None:
        async with interfaces.network_errors():
            raise NetworkError(status, "Kind", "words")

    with pytest.raises(error, match="words") as raised:
        run(scenario())
    if isinstance(raised.value, Failed):
        assert raised.value.fault == f"the network service answered {status} Kind: words"


def test_set_interfaces_clears_fault(database_url: str) -> None:
    async def scenario() -> None:
        async with opened_interfaces(database_url) as i:
            await put_server(i.cloud.db, SERVER, fault='{"message": "x"}')
            async with i.cloud.db.transaction() as tx:
                await model.set_interfaces(tx, SERVER, [make_interface("p"), make_interface("q")])
            server = await server_of(i.op)
            assert server.fault is None
            assert server.find_interface("q") == make_interface("q")
            assert server.find_interface("r") is None

    run(scenario())
