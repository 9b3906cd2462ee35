"""Changes of a server's state: those that the state table does not have are refused before anything is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

import pytest

from kilonova.compute.servers import model, states
from kilonova.compute.servers.server import Fault, Server
from kilonova.compute.servers.states import (
    ACTIVE,
    BUILDING,
    DELETED,
    ERROR,
    PAUSED,
    RESCUED,
    RESIZED,
    SHELVED,
    SHELVED_OFFLOADED,
    SOFT_DELETED,
    STOPPED,
    SUSPENDED,
)
from kilonova.store import Database, Transaction
from tests.support import run
from tests.support.cloud import cloud, insert_server, put_server

SERVER = "aaaaaaaa-1111-4111-8111-111111111111"
Change = Callable[[Transaction, str], Awaitable[None]]

# Each function that changes the state to one given state, and the states in which it may.
CHANGES: dict[str, tuple[Change, set[str]]] = {
    "finish_boot": (lambda tx, server_id: model.finish_boot(tx, server_id, []), {BUILDING, ACTIVE}),
    "rebuild": (
        lambda tx, server_id: model.rebuild(tx, server_id, {"name": "new"}, ACTIVE, states.RUNNING),
        {ACTIVE, ERROR},
    ),
    "rebuild of a stopped server": (
        lambda tx, server_id: model.rebuild(tx, server_id, {}, STOPPED, states.SHUTDOWN),
        {STOPPED},
    ),
    "shelve": (
        lambda tx, server_id: model.shelve(tx, server_id, None, None),
        {ACTIVE, STOPPED, PAUSED, SUSPENDED, SHELVED},
    ),
    "unshelve": (model.unshelve, {SHELVED, SHELVED_OFFLOADED, ERROR, ACTIVE}),
    "soft_delete": (model.soft_delete, {ACTIVE, STOPPED, PAUSED, SUSPENDED, RESCUED, ERROR, SOFT_DELETED}),
    "restore": (model.restore, {SOFT_DELETED, ACTIVE}),
    "delete": (model.delete, set(states.STATUS)),
    "reset_state to active": (
        lambda tx, server_id: model.reset_state(tx, server_id, ACTIVE),
        states.STATUS.keys() - {BUILDING, SHELVED_OFFLOADED, DELETED},
    ),
    "reset_state to error": (
        lambda tx, server_id: model.reset_state(tx, server_id, ERROR),
        states.STATUS.keys() - {DELETED},
    ),
    "record_guest": (
        lambda tx, server_id: model.record_guest(tx, server_id, STOPPED, states.SHUTDOWN, None),
        {ACTIVE, STOPPED, PAUSED, SUSPENDED},
    ),
    "settle after a failed stop": (
        lambda tx, server_id: model.settle(tx, server_id, "memory loss", STOPPED, states.SHUTDOWN),
        {PAUSED, SUSPENDED, STOPPED},
    ),
}


async def get(db: Database) -> Server:
    row = await db.fetch_one("SELECT * FROM servers WHERE id = $1", SERVER)
    assert row is not None
    return Server.decode(row)


async def is_refused(db: Database, change: Change) -> bool:
    """Whether the change is refused. A refused one writes nothing, even if the transaction commits."""
    before = await get(db)
    async with db.transaction() as tx:
        try:
            await change(tx, SERVER)
        except states.InvalidTransition:
            pass
        else:
            return False
    assert await get(db) == before
    return True


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_refused_in_other_states(sqlite_url: str, name: str) -> None:
    change, allowed = CHANGES[name]

    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_server(c.db, SERVER)
            accepted = set()
            for vm_state in states.STATUS:
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET vm_state = $1", vm_state)
                if not await is_refused(c.db, change):
                    accepted.add(vm_state)
            assert accepted == allowed

    run(scenario())


def test_settle_obeys_each_transition(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_server(c.db, SERVER)
            for (action, transition), before in product(states.TRANSITIONS.items(), states.STATUS):
                for after in {state for following in transition.follows.values() for state in following}:
                    async with c.db.transaction() as tx:
                        await tx.execute("UPDATE servers SET vm_state = $1", before)
                    legal = after in transition.follows.get(before, ()) or before == after
                    refused = await is_refused(c.db, lambda tx, id: model.settle(tx, id, action, after, 0))  # noqa: B023
                    assert refused != legal, (action, before, after)

    run(scenario())


def test_state_that_an_action_never_leads_to_is_refused(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_server(c.db, SERVER, vm_state=STOPPED)
            assert await is_refused(c.db, lambda tx, server_id: model.settle(tx, server_id, "pause", STOPPED, 0))

    run(scenario())


def test_refusal_names_the_change(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, SERVER, vm_state=RESIZED)
            message = f"^'shelve' cannot change instance {SERVER} from resized to shelved$"
            with pytest.raises(states.InvalidTransition, match=message):
                async with c.db.transaction() as tx:
                    await model.shelve(tx, SERVER, None, None)

    run(scenario())


def test_every_server_but_a_deleted_one_can_fail(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            await put_server(c.db, SERVER)
            for vm_state in states.STATUS:
                async with c.db.transaction() as tx:
                    await tx.execute("UPDATE servers SET vm_state = $1, fault = NULL", vm_state)
                    await model.fail(tx, SERVER, "no host", "details")
                server = await get(c.db)
                if vm_state == DELETED:
                    assert (server.vm_state, server.fault) == (DELETED, None)
                    continue
                assert server.vm_state == ERROR
                assert isinstance(server.fault, Fault)
                assert (server.fault.message, server.fault.details) == ("no host", "details")

    run(scenario())


def test_deletion_removes_user_data_files_and_passwords(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c, c.db.transaction() as tx:
            files = '[{"path":"/etc/secret","contents":"c2VjcmV0"}]'
            await insert_server(tx, SERVER, user_data="c2VjcmV0", personality=files, sealed_password="c2VjcmV0")
            await model.delete(tx, SERVER)
            row = await tx.fetch_one(
                "SELECT user_data, personality, sealed_password FROM servers WHERE id = $1", SERVER
            )
            assert row == {"user_data": None, "personality": None, "sealed_password": None}

    run(scenario())
