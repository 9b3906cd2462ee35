"""What becomes of a server's ports when it moves, and what the network service says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from kilonova.compute.operations import ports
from kilonova.http.client import InProcess, Response, Unreachable
from kilonova.network.client import NetworkClient, NetworkError
from kilonova.operations import Failed, Passing
from tests.network.support import Net, net
from tests.support import run
from tests.support.cloud import DEMO, Identity, put_server
from tests.support.whole import whole

SERVER = "5e4e4000-0000-4000-8000-000000000001"
Way = Callable[[Any, str], Awaitable[None]]


class Caller(InProcess):
    """Writes down what is asked for, and breaks down at the request of a number: unheard, or heard but unanswered."""

    def __init__(self, app: Any) -> None:
        super().__init__(app, "/network")
        self.asked: list[str] = []
        self.break_at, self.heard = 0, False

    async def request(self, method: str, path: str, **options: Any) -> Response:
        self.asked.append(f"{method} {path}")
        if len(self.asked) != self.break_at:
            return await super().request(method, path, **options)
        if self.heard:
            await super().request(method, path, **options)
        raise Unreachable("broken by a test")


class Ports:
    """A server with ports, and an operation about it."""

    def __init__(self, cloud: Net, caller: Caller, ids: list[str]) -> None:
        self.cloud = cloud
        self.caller = caller
        self.ids = ids
        services = SimpleNamespace(network=NetworkClient(caller), identity=Identity())
        self.op: Any = SimpleNamespace(services=services, db=cloud.db, server_id=SERVER)

    async def hosts(self) -> list[list[str]]:
        """The hosts of each port's bindings, that of the active one first; "" if none is active."""
        found = []
        for port_id in self.ids:
            active = await self.cloud.db.fetch_value("SELECT host_id FROM ports WHERE id = $1", port_id)
            sql = "SELECT host FROM standby_bindings WHERE port_id = $1 ORDER BY host"
            found.append([active, *(row["host"] for row in await self.cloud.db.fetch(sql, port_id))])
        return found

    async def state(self) -> list[dict[str, Any]]:
        """All there is about the ports and their bindings, but how often they were changed."""
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
        ids = [(await cloud.make("port", "service", **wanted))["id"] for _ in range(count)]
        await put_server(cloud.db, SERVER, host="a", nics=orjson.dumps([{"port_id": one} for one in ids]).decode())
        yield Ports(cloud, Caller(cloud.app), ids)


def test_ports_stand_by_and_move(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(database_url, 2) as p:
            before = await p.state()
            for _ in "twice":
                await ports.standby(p.op, "b")
                assert await p.hosts() == [["a", "b"], ["a", "b"]]
            for _ in "twice":
                await ports.move(p.op, "b")
                assert await p.hosts() == [["b"], ["b"]]
            shown = await p.cloud.show("port", p.ids[0], "admin")
            assert (shown["binding:profile"], shown["status"]) == ({"x": 1}, "ACTIVE")
            for _ in "twice":
                await ports.move(p.op, "a")
                assert await p.state() == before

    run(scenario())


def test_ports_no_longer_stand_by(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(database_url, 2) as p:
            before = await p.state()
            await ports.standby(p.op, "b")
            for _ in "twice":
                await ports.unstandby(p.op, "b")
                assert await p.state() == before
            await ports.standby(p.op, "a")
            await ports.unstandby(p.op, "a")
            assert await p.state() == before

    run(scenario())


def test_ports_are_unbound_and_bound_again(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(database_url) as p:
            before = await p.state()
            await ports.standby(p.op, "b")
            for _ in "twice":
                await ports.move(p.op, "")
                assert await p.hosts() == [[""]]
            await ports.move(p.op, "a")
            assert await p.state() == before

    run(scenario())


def test_a_move_asks_little(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url) as p:
            port = f"/v2.0/ports/{p.ids[0]}"
            look = [f"GET /v2.0/ports?device_id={SERVER}", f"GET {port}/bindings"]

            async def asked(way: Way, host: str) -> list[str]:
                p.caller.asked.clear()
                await way(p.op, host)
                return p.caller.asked

            assert await asked(ports.move, "b") == [*look, f"PUT {port}"]
            assert await asked(ports.move, "b") == look
            assert await asked(ports.standby, "a") == [look[0], f"POST {port}/bindings"]
            activate = [f"PUT {port}/bindings/a/activate", f"DELETE {port}/bindings/b"]
            assert await asked(ports.move, "a") == [*look, *activate]
            assert await asked(ports.unstandby, "b") == [look[0], f"DELETE {port}/bindings/b"]
        async with net(sqlite_url) as cloud:
            bare = Ports(cloud, Caller(cloud.app), [])
            async with cloud.db.transaction() as tx:
                await tx.execute("UPDATE servers SET nics = '[]'")
            for way in (ports.standby, ports.unstandby, ports.move):
                await way(bare.op, "b")
            assert bare.caller.asked == []

    run(scenario())


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "unanswered"])
@pytest.mark.parametrize("prepared", [False, True], ids=["alone", "stood by"])
@pytest.mark.parametrize("target", ["b", ""])
def test_broken_off_anywhere_it_is_taken_back_or_goes_on(
    sqlite_url: str, target: str, prepared: bool, heard: bool
) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 2) as p:
            before = await p.state()
            for number in range(1, 20):
                for then in ("a", target):
                    if prepared:
                        await ports.standby(p.op, "b")
                    p.caller.asked, p.caller.break_at, p.caller.heard = [], number, heard
                    try:
                        await ports.move(p.op, target)
                    except Unreachable:
                        pass
                    p.caller.break_at = 0
                    await ports.move(p.op, then)
                    assert await p.hosts() == [[then], [then]], (number, p.caller.asked)
                    await ports.move(p.op, "a")
                    assert await p.state() == before
                if len(p.caller.asked) < number:
                    break
            assert number > 5

    run(scenario())


def test_ports_that_are_no_longer_the_servers_are_left_alone(database_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(database_url, 3) as p:
            kept, gone, given = p.ids
            await p.cloud.ok("DELETE", f"/ports/{gone}")
            await p.cloud.change("port", {"id": given}, "service", device_id="another")
            p.ids = [kept, given]
            await ports.standby(p.op, "b")
            assert await p.hosts() == [["a", "b"], ["a"]]
            await ports.move(p.op, "b")
            assert await p.hosts() == [["b"], ["a"]]
            await ports.move(p.op, "")
            assert await p.hosts() == [[""], ["a"]]

    run(scenario())


def test_a_port_that_goes_meanwhile_is_skipped(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 2) as p:
            listed = NetworkClient.ports_of

            async def late(network: NetworkClient, device_id: str, token: str) -> list[Any]:
                found = await listed(network, device_id, token)
                await network.delete_port(p.ids[0], token)
                return found

            await ports.standby(p.op, "c")
            monkeypatch.setattr(NetworkClient, "ports_of", late)
            with pytest.raises(Passing):
                await ports.move(p.op, "b")
            await ports.move(p.op, "b")
            p.ids = p.ids[1:]
            assert await p.hosts() == [["b"]]

    run(scenario())


def test_a_port_that_goes_before_it_stands_by_is_skipped(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 2) as p:
            create = NetworkClient.create_binding

            async def late(network: NetworkClient, port_id: str, binding: Any, token: str) -> Any:
                await network.delete_port(p.ids[0], token)
                return await create(network, port_id, binding, token)

            monkeypatch.setattr(NetworkClient, "create_binding", late)
            await ports.standby(p.op, "b")
            p.ids = p.ids[1:]
            assert await p.hosts() == [["a", "b"]]

    run(scenario())


def test_ports_that_cannot_be_bound_fail_before_anything_moves(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 1, {"binding:vnic_type": "direct"}) as p:
            before = await p.state()
            for _ in "twice":
                with pytest.raises(Failed, match=f"^Port {p.ids[0]} cannot be bound to the destination.$"):
                    await ports.standby(p.op, "b")
            await ports.unstandby(p.op, "b")
            assert await p.state() == before

    run(scenario())


@pytest.mark.parametrize("way", [ports.standby, ports.unstandby, ports.move])
@pytest.mark.parametrize("status", [403, 409, 412])
def test_what_the_network_service_refuses(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, status: int, way: Way
) -> None:
    said = "rack1-10 cannot follow rack1-1."

    async def refuse(*_: Any, **__: Any) -> Any:
        raise NetworkError(status, "No", said)

    async def scenario() -> None:
        async with server_with_ports(sqlite_url, 1, {"binding:host_id": "rack1-1"}) as p:
            for method in ("update_port", "create_binding", "delete_binding"):
                monkeypatch.setattr(NetworkClient, method, refuse)
            with pytest.raises(Exception, match="follow") as caught:
                await way(p.op, "rack1-10")
            if status == 403:
                assert isinstance(caught.value, Failed)
                assert str(caught.value) == "The network ports could not be bound: the host cannot follow the host."
                assert caught.value.fault == said
            else:
                assert isinstance(caught.value, Passing)

    run(scenario())


def test_a_network_service_that_knows_only_one_binding(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A back end without the extension answers 404: then a port simply moves when it is time."""

    async def scenario() -> None:
        async with server_with_ports(sqlite_url) as p:
            call = InProcess.request

            async def older(caller: InProcess, method: str, path: str, **options: Any) -> Response:
                if "/bindings" in path:
                    return Response(404, {}, b"The resource could not be found.")
                return await call(caller, method, path, **options)

            monkeypatch.setattr(InProcess, "request", older)
            await ports.standby(p.op, "b")
            assert await p.hosts() == [["a"]]
            await ports.move(p.op, "b")
            assert await p.hosts() == [["b"]]
            await ports.move(p.op, "")
            assert await p.hosts() == [[""]]

    run(scenario())


def test_users_do_not_learn_the_host_from_the_network_service(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It speaks to whoever may bind ports, and a real one names the host that it cannot bind one to."""

    async def refuse(*_: Any) -> list[Any]:
        raise NetworkError(409, "HostNotConnected", "Host sim-001 is not connected to any segments")

    async def scenario() -> None:
        async with whole(sqlite_url, hosts=1) as c:
            monkeypatch.setattr(NetworkClient, "create_ports", refuse)
            server_id = (await c.boot())["id"]
            told = (await c.settled(server_id))["fault"]
            words = "is not connected to any segments"
            assert told["message"] == f"Failed to allocate the network(s): Host the host {words}"
            assert told["details"] == f"sim-001: Host sim-001 {words}"

    run(scenario())
