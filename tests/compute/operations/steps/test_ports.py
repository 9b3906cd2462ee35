"""Steps for ports: standby bindings, moves, interrupted calls and errors of the network service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.compute.operations.steps import ports
from kilonova.http.client import ClientResponse, InProcess, Unreachable
from kilonova.network.client import NetworkClient, NetworkError
from kilonova.operations import Failed, TransientError
from kilonova.store.records import encode_document
from tests.compute.servers.support import make_interface
from tests.network.support import Net, net
from tests.support import run
from tests.support.cloud import DEMO, Identity, put_server
from tests.support.full_cloud import full_cloud

SERVER = "5e4e4000-0000-4000-8000-000000000001"
PortStep = Callable[[Any, str], Awaitable[None]]


class RecordingCaller(InProcess):
    """Records requests, and loses request number `break_at`, or only its response if `delivered`."""

    def __init__(self, app: Any) -> None:
        super().__init__(app, "/network")
        self.requests: list[str] = []
        self.break_at, self.delivered = 0, False

    async def request(self, method: str, path: str, **options: Any) -> ClientResponse:
        self.requests.append(f"{method} {path}")
        if len(self.requests) != self.break_at:
            return await super().request(method, path, **options)
        if self.delivered:
            await super().request(method, path, **options)
        raise Unreachable("broken by a test")


class Ports:
    """A server with ports, and an operation of this server."""

    def __init__(self, cloud: Net, caller: RecordingCaller, ids: list[str]) -> None:
        self.cloud = cloud
        self.caller = caller
        self.ids = ids
        services = SimpleNamespace(network=NetworkClient(caller), identity=Identity())
        self.op: Any = SimpleNamespace(
            services=services, db=cloud.db, server_id=SERVER, project_id=DEMO, find_result=lambda step: None
        )

    async def hosts(self) -> list[list[str]]:
        """The hosts of each port's bindings. The active one comes first; it is empty if the port is unbound."""
        found = []
        for port_id in self.ids:
            active = await self.cloud.db.fetch_value("SELECT host_id FROM ports WHERE id = $1", port_id)
            sql = "SELECT host FROM standby_bindings WHERE port_id = $1 ORDER BY host"
            found.append([active, *(row["host"] for row in await self.cloud.db.fetch(sql, port_id))])
        return found

    async def state(self) -> list[dict[str, Any]]:
        """All columns of the ports and their bindings, except revisions and times."""
        rows = await self.cloud.db.fetch("SELECT * FROM ports ORDER BY id")
        rows += await self.cloud.db.fetch("SELECT * FROM standby_bindings ORDER BY port_id, host")
        volatile = ("revision_number", "updated_at", "created_at")
        return [{name: value for name, value in row.items() if name not in volatile} for row in rows]


@asynccontextmanager
async def server_with_ports(
    database_url: str, count: int = 1, more: dict[str, str] | None = None
) -> AsyncIterator[Ports]:
    async with net(database_url) as cloud:
        network, _ = await cloud.network_with_subnet()
        wanted = {"network_id": network["id"], "project_id": DEMO, "device_id": SERVER, "device_owner": "compute:nova"}
        wanted |= {"binding:host_id": "a", "binding:profile": {"x": 1}, **(more or {})}
        ids = [(await cloud.create("port", "service", **wanted))["id"] for _ in range(count)]
        nics = encode_document([make_interface(port_id) for port_id in ids])
        await put_server(cloud.db, SERVER, host="a", nics=nics)
        yield Ports(cloud, RecordingCaller(cloud.app), ids)


def test_prepare_standby_and_move(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(database_url, 2) as p:
            before = await p.state()
            for _ in range(2):
                await ports.prepare_standby(p.op, "b")
                assert await p.hosts() == [["a", "b"], ["a", "b"]]
            for _ in range(2):
                await ports.move(p.op, "b")
                assert await p.hosts() == [["b"], ["b"]]
            shown = await p.cloud.show("port", p.ids[0], "admin")
            assert (shown["binding:profile"], shown["status"]) == ({"x": 1}, "ACTIVE")
            for _ in range(2):
                await ports.move(p.op, "a")
                assert await p.state() == before

    run(scenario())


def test_drop_standby(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(database_url, 2) as p:
            before = await p.state()
            await ports.prepare_standby(p.op, "b")
            for _ in range(2):
                await ports.drop_standby(p.op, "b")
                assert await p.state() == before
            await ports.prepare_standby(p.op, "a")
            await ports.drop_standby(p.op, "a")
            assert await p.state() == before

    run(scenario())


def test_move_unbinds_and_binds_again(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(database_url) as p:
            before = await p.state()
            await ports.prepare_standby(p.op, "b")
            for _ in range(2):
                await ports.move(p.op, "")
                assert await p.hosts() == [[""]]
            await ports.move(p.op, "a")
            assert await p.state() == before

    run(scenario())


def test_requests_of_each_step(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url) as p:
            port = f"/v2.0/ports/{p.ids[0]}"
            reads = [f"GET /v2.0/ports?device_id={SERVER}&project_id={DEMO}", f"GET {port}/bindings"]

            async def requests_of(step: PortStep, host: str) -> list[str]:
                p.caller.requests.clear()
                await step(p.op, host)
                return p.caller.requests

            assert await requests_of(ports.move, "b") == [*reads, f"PUT {port}"]
            assert await requests_of(ports.move, "b") == reads
            assert await requests_of(ports.prepare_standby, "a") == [reads[0], f"POST {port}/bindings"]
            activate = [f"PUT {port}/bindings/a/activate", f"DELETE {port}/bindings/b"]
            assert await requests_of(ports.move, "a") == [*reads, *activate]
            assert await requests_of(ports.drop_standby, "b") == [reads[0], f"DELETE {port}/bindings/b"]
        async with net(sqlite_url) as cloud:
            bare = Ports(cloud, RecordingCaller(cloud.app), [])
            async with cloud.db.transaction() as tx:
                await tx.execute("UPDATE servers SET nics = '[]'")
            for step in (ports.prepare_standby, ports.drop_standby, ports.move):
                await step(bare.op, "b")
            assert bare.caller.requests == []

    run(scenario())


@pytest.mark.parametrize("delivered", [False, True], ids=["request lost", "response lost"])
@pytest.mark.parametrize("prepared", [False, True], ids=["no standby", "standby"])
@pytest.mark.parametrize("target", ["b", ""])
def test_interrupted_move_is_undone_or_completed(sqlite_url: str, target: str, prepared: bool, delivered: bool) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 2) as p:
            before = await p.state()
            for number in range(1, 20):
                for final in ("a", target):
                    if prepared:
                        await ports.prepare_standby(p.op, "b")
                    p.caller.requests, p.caller.break_at, p.caller.delivered = [], number, delivered
                    try:
                        await ports.move(p.op, target)
                    except Unreachable:
                        pass
                    p.caller.break_at = 0
                    await ports.move(p.op, final)
                    assert await p.hosts() == [[final], [final]], (number, p.caller.requests)
                    await ports.move(p.op, "a")
                    assert await p.state() == before
                if len(p.caller.requests) < number:
                    break
            assert number > 5

    run(scenario())


def test_move_ignores_deleted_and_rebound_ports(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(database_url, 3) as p:
            kept, deleted, rebound = p.ids
            await p.cloud.ok("DELETE", f"/ports/{deleted}")
            await p.cloud.update("port", {"id": rebound}, "service", device_id="another")
            p.ids = [kept, rebound]
            await ports.prepare_standby(p.op, "b")
            assert await p.hosts() == [["a", "b"], ["a"]]
            await ports.move(p.op, "b")
            assert await p.hosts() == [["b"], ["a"]]
            await ports.move(p.op, "")
            assert await p.hosts() == [[""], ["a"]]

    run(scenario())


def test_move_skips_port_deleted_during_move(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 2) as p:
            list_ports = NetworkClient.ports_of_device

            async def delete_first(network: NetworkClient, *arguments: Any, **options: Any) -> list[Any]:
                found = await list_ports(network, *arguments, **options)
                await network.delete_port(p.ids[0], arguments[-1])
                return found

            await ports.prepare_standby(p.op, "c")
            monkeypatch.setattr(NetworkClient, "ports_of_device", delete_first)
            with pytest.raises(TransientError):
                await ports.move(p.op, "b")
            await ports.move(p.op, "b")
            p.ids = p.ids[1:]
            assert await p.hosts() == [["b"]]

    run(scenario())


def test_prepare_standby_skips_port_deleted_meanwhile(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 2) as p:
            create = NetworkClient.create_binding

            async def delete_first(network: NetworkClient, port_id: str, binding: Any, token: str) -> Any:
                await network.delete_port(p.ids[0], token)
                return await create(network, port_id, binding, token)

            monkeypatch.setattr(NetworkClient, "create_binding", delete_first)
            await ports.prepare_standby(p.op, "b")
            p.ids = p.ids[1:]
            assert await p.hosts() == [["a", "b"]]

    run(scenario())


def test_prepare_standby_fails_if_port_cannot_be_bound(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 1, {"binding:vnic_type": "direct"}) as p:
            before = await p.state()
            for _ in range(2):
                with pytest.raises(Failed, match=f"^Port {p.ids[0]} cannot be bound to the host: its network"):
                    await ports.prepare_standby(p.op, "b")
            await ports.drop_standby(p.op, "b")
            assert await p.state() == before

    run(scenario())


@pytest.mark.parametrize("step", [ports.prepare_standby, ports.drop_standby, ports.move])
@pytest.mark.parametrize("status", [403, 409, 412])
def test_errors_of_network_service(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, status: int, step: PortStep
) -> None:
    message = "rack1-10 cannot follow rack1-1."

    async def refuse(*_: Any, **__: Any) -> Any:
        raise NetworkError(status, "No", message)

    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 1, {"binding:host_id": "rack1-1"}) as p:
            for method in ("update_port", "create_binding", "delete_binding"):
                monkeypatch.setattr(NetworkClient, method, refuse)
            with pytest.raises(Exception, match="follow") as caught:
                await step(p.op, "rack1-10")
            if status == 403:
                assert isinstance(caught.value, Failed)
                assert str(caught.value) == "The network ports could not be bound: the host cannot follow the host."
                assert caught.value.fault == message
            else:
                assert isinstance(caught.value, TransientError)

    run(scenario())


def test_move_without_extended_bindings(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without the extension answers 404. Its ports have no standby binding, and move later."""

    async def scenario() -> None:
        async with server_with_ports(sqlite_url) as p:
            call = InProcess.request

            async def without_bindings(caller: InProcess, method: str, path: str, **options: Any) -> ClientResponse:
                if "/bindings" in path:
                    return ClientResponse(404, {}, b"The resource could not be found.")
                return await call(caller, method, path, **options)

            monkeypatch.setattr(InProcess, "request", without_bindings)
            await ports.prepare_standby(p.op, "b")
            assert await p.hosts() == [["a"]]
            await ports.move(p.op, "b")
            assert await p.hosts() == [["b"]]
            await ports.move(p.op, "")
            assert await p.hosts() == [[""]]

    run(scenario())


def test_fault_of_user_hides_host_name(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neutron's error names the host, since the caller may bind ports."""

    async def refuse(*_: Any) -> list[Any]:
        raise NetworkError(409, "HostNotConnected", "Host sim-001 is not connected to any segments")

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=1) as c:
            monkeypatch.setattr(NetworkClient, "create_ports", refuse)
            server_id = (await c.boot())["id"]
            server_fault = (await c.wait_until_settled(server_id))["fault"]
            words = "is not connected to any segments"
            assert server_fault["message"] == f"Failed to allocate the network(s): Host the host {words}"
            assert server_fault["details"] == f"sim-001: Host sim-001 {words}"

    run(scenario())
