"""Findings about ports of a network service that other compute services may use, too."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kilonova.config import load
from kilonova.doctor import Finding, Unavailable, examine
from kilonova.doctor.facts import CheckedPort, Ports
from kilonova.doctor.ports import read_external, read_from_api
from kilonova.network.client import NetworkClient
from kilonova.store import Database
from tests.compute.operations.volume_worlds import make_server
from tests.compute.operations.worlds import World
from tests.doctor.support import OTHER, PORT, SERVER, Opener, add_consistent_server, add_operation, add_server, guest
from tests.support import run
from tests.support.full_cloud import full_cloud

HOST, ELSEWHERE = "sim-001", "sim-002"
OWN = CheckedPort(PORT, SERVER, HOST)


def findings(database: Opener, ports: list[CheckedPort] | None, prepare: Any = None) -> list[tuple[str, str]]:
    """`ports` are those of the external service; None: it does not respond."""

    async def read() -> Ports | None:
        return None if ports is None else Ports({port.id: port for port in ports}, [], built_in=False)

    async def collect() -> list[Finding]:
        async with database() as db:
            await add_consistent_server(db)
            # A real service is configured, so these rows do not count.
            async with db.transaction() as tx:
                await tx.execute("UPDATE ports SET host_id = 'another host'")
            await add_server(db, OTHER, deleted=True)
            if prepare is not None:
                await prepare(db)
            return await examine(db, [guest()], read_ports=read)

    return [(finding.kind, finding.subject) for finding in run(collect())]


@pytest.mark.parametrize(
    "ports, found",
    [
        ([OWN], []),
        (None, []),
        ([], [("server's port missing", SERVER)]),
        ([CheckedPort(PORT, SERVER, ELSEWHERE)], [("port on the wrong host", PORT)]),
        ([CheckedPort(PORT, SERVER, "")], [("port on the wrong host", PORT)]),
        ([OWN, CheckedPort("port-2", OTHER, HOST)], [("port without server", "port-2")]),
        ([OWN, CheckedPort("port-2", "of another compute service", HOST)], []),
        (
            [CheckedPort(PORT, "of another compute service", HOST)],
            [("port without server", PORT), ("server's port missing", SERVER)],
        ),
    ],
)
def test_ports_of_an_external_service(
    database: Opener, ports: list[CheckedPort] | None, found: list[tuple[str, str]]
) -> None:
    assert findings(database, ports) == found


def test_ports_of_a_server_with_an_operation_are_skipped(database: Opener) -> None:
    async def prepare(db: Database) -> None:
        await add_operation(db, kind="delete", server_id=OTHER)

    assert findings(database, [OWN, CheckedPort("port-2", OTHER, HOST)], prepare) == []


def test_unreachable_service(tmp_path: Path) -> None:
    keystone = {"identity.auth_url": "http://127.0.0.1:1/v3", "identity.password": "x"}
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
        run(read_external(load(environ={}, flags={"data": str(tmp_path), **keystone})))
    with pytest.raises(Unavailable, match="no running cloud"):
        run(read_external(load(environ={}, flags={"data": str(tmp_path), "network.url": "http://127.0.0.1:1"})))


def test_service_is_read_by_its_api(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kilonova.network.client._PAGE_SIZE", 1)

    async def scenario() -> None:
        async with full_cloud(sqlite_url) as c:
            world = World()
            world.__dict__.update(vars(c.services), cloud=c, server_id="00000000-0000-4000-8000-000000000001")
            await make_server(c.db, world)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE operations SET finished_at = 1")
            client = NetworkClient(c.services.network._caller)
            read = partial(read_from_api, client, "admin")
            listed = (await read()).ports
            host = await c.db.fetch_value("SELECT host FROM servers WHERE id = $1", world.server_id)
            assert {(port.device_id, port.host_id) for port in listed.values()} == {(world.server_id, host)}
            guests = await c.list_guests_and_slots()
            assert await examine(c.db, guests, read_ports=read) == []
            for port_id in listed:
                await client.update_port(port_id, {"binding:host_id": "elsewhere"}, "admin")
            found = await examine(c.db, guests, read_ports=read)
            assert {(finding.kind, finding.subject) for finding in found} == {
                ("port on the wrong host", port_id) for port_id in listed
            }

    run(scenario())
