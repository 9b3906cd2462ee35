"""Steps that all moves share: allocations and hosts after claim, release, swap and completion."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from kilonova.compute.migrations import model as moves
from kilonova.compute.operations.resize import Migrate
from kilonova.compute.operations.steps import choose, move
from kilonova.hosts.transport import HostNotResponding, HostUnreachable
from kilonova.operations import Failed, Operation
from tests.compute.operations.steps.support import begin_leased_move, get_server, list_allocations
from tests.compute.servers.moves import force_down
from tests.compute.servers.support import rules
from tests.support import run
from tests.support.full_cloud import FullCloud, full_cloud

HOSTS = {"sim-001", "sim-002"}


async def begin_migrate(c: FullCloud, **params: Any) -> tuple[Operation, str, str]:
    """The migration, its source and its destination."""
    server = await c.boot_active(networks="none")
    op = await begin_leased_move(c, Migrate, server["id"], moves.MIGRATION, **params)
    source = server["OS-EXT-SRV-ATTR:host"]
    (destination,) = HOSTS - {source}
    return op, source, destination


async def claim(c: FullCloud, op: Operation) -> None:
    op.results[choose.CHOOSE.name] = await move.choose_host(op)
    async with c.db.transaction() as tx:
        op.results[choose.CLAIM.name] = await move.claim(op, tx)


async def allocations(c: FullCloud, op: Operation) -> list[tuple[str, str] | None]:
    """Consumer type and host of the allocations of server and migration."""
    found = await list_allocations(c)
    assert found.keys() <= {op.server_id, op.id}
    return [found.get(str(op.server_id)), found.get(op.id)]


async def server_host(c: FullCloud, op: Operation) -> tuple[str, str]:
    server = await get_server(c, op.server_id)
    return str(server.host), str(server.hypervisor_hostname)


def test_claim_allocates_destination_for_migration(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            op, source, destination = await begin_migrate(c)
            for _ in range(2):
                await claim(c, op)
                assert await allocations(c, op) == [("INSTANCE", source), ("MIGRATION", destination)]
                assert (op.host, await server_host(c, op)) == (destination, (source, source))
                for _ in range(2):
                    async with c.db.transaction() as tx:
                        await move.release_claim(op, tx)
                    assert await allocations(c, op) == [("INSTANCE", source), None]
                    assert (op.host, await server_host(c, op)) == (source, (source, source))
            row = await moves.get_by_operation(c.db, op.id)
            assert (row.dest_host, row.dest_node) == (destination, destination), "the record keeps it"

    run(scenario())


def test_swap_gives_server_the_destination(database_url: str) -> None:
    """The migration keeps the allocation on the source until the move is confirmed."""

    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            op, source, destination = await begin_migrate(c)
            await claim(c, op)
            async with c.db.transaction() as tx:
                old = await move.swap_to_destination(op, tx)
            assert old.host == source
            assert await allocations(c, op) == [("INSTANCE", destination), ("MIGRATION", source)]
            assert await server_host(c, op) == (destination, destination)

    run(scenario())


def test_completed_move_releases_source(database_url: str) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            op, source, destination = await begin_migrate(c)
            await claim(c, op)
            async with c.db.transaction() as tx:
                assert (await move.complete_move(op, tx)).host == source
            assert await allocations(c, op) == [("INSTANCE", destination), None]
            assert await server_host(c, op) == (destination, destination)

    run(scenario())


@pytest.mark.parametrize("unverified", [False, True])
def test_source_is_no_destination(database_url: str, unverified: bool) -> None:
    async def scenario() -> None:
        async with full_cloud(database_url, hosts=2) as c:
            op, source, _ = await begin_migrate(c, unverified=unverified)
            op.params = structs.replace(op.params, host=source)
            with pytest.raises(Failed, match=r"^No valid host was found: .*excluded"):
                await move.choose_host(op)

    run(scenario())


def test_addresses_of_unreachable_host(sqlite_url: str) -> None:
    """The step is repeated while the host may only be slow, but not if an operator has forced it down."""

    async def scenario() -> None:
        async with full_cloud(sqlite_url, hosts=2) as c:
            op, _, destination = await begin_migrate(c)
            assert isinstance(await move.addresses_of_host(op, destination), dict)
            with rules(c) as sim:
                sim.add_failure(destination, "describe", "unreachable", 1, None)
                with pytest.raises(HostUnreachable):
                    await move.addresses_of_host(op, destination)
                await force_down(c, destination)
                sim.add_failure(destination, "describe", "unreachable", 1, None)
                with pytest.raises(HostNotResponding):
                    await move.addresses_of_host(op, destination)

    run(scenario())
