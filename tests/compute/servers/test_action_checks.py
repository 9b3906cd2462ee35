"""Checks that actions on servers share: visibility, policy, lock, state, host, and the order of these checks."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.compute.operations.power import Stop
from kilonova.compute.servers import action_checks, states
from kilonova.compute.servers.server import Server
from kilonova.http.errors import BadRequest, Conflict, Forbidden, HttpError, NotFound
from kilonova.operations import begin
from kilonova.scheduler import Scheduler
from tests.compute.placements.test_dry_run import DRY
from tests.compute.servers.support import act, make_context, make_server
from tests.support import run
from tests.support.cloud import DEMO, Cloud, cloud, fault, put_server

SERVER = "aaaaaaaa-1111-4111-8111-111111111111"
RULE = "os_compute_api:servers:stop"
LOCKED = f"Instance {SERVER} is locked"
WRONG_STATE = f"Cannot 'stop' instance {SERVER} while it is in vm_state paused"
NO_HOST = f"Instance {SERVER} is not ready: it has no host"
# A server that no caller can stop. Each case of the test removes some obstacles.
OBSTACLES: dict[str, Any] = {"locked": True, "vm_state": "paused", "host": None}


async def find_ready(c: Cloud, as_: str = "member") -> Server:
    async with c.db.transaction() as tx:
        return await action_checks.find_ready(make_context(c, as_), tx, SERVER, rule=RULE, transition="os-stop")


@pytest.mark.parametrize(
    ("as_", "removed", "error", "message"),
    [
        ("other", {}, NotFound, f"Instance {SERVER} could not be found."),
        ("reader", {}, Forbidden, f"Policy doesn't allow {RULE} to be performed."),
        ("member", {}, Conflict, LOCKED),
        ("member", {"locked": False}, Conflict, WRONG_STATE),
        ("member", {"locked": False, "vm_state": "active"}, Conflict, NO_HOST),
        # Administrators may override a lock, but no state.
        ("admin", {}, Conflict, WRONG_STATE),
        ("admin", {"vm_state": "active"}, Conflict, NO_HOST),
    ],
)
def test_order_of_checks(
    database_url: str, as_: str, removed: dict[str, Any], error: type[HttpError], message: str
) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, SERVER, **{**OBSTACLES, **removed})
            with pytest.raises(error) as refusal:
                await find_ready(c, as_)
            assert refusal.value.message == message

    run(scenario())


# The only actions of a shelved server in error. A server in error that is not shelved cannot be unshelved.
SHELVED_IN_ERROR = {"unshelve", "delete", "os-resetState"}


@pytest.mark.parametrize(
    "vm_state, shelved", [*((state, "shelved" in state) for state in sorted(states.STATUS)), (states.ERROR, True)]
)
def test_each_transition_is_allowed_in_its_states_only(sqlite_url: str, vm_state: str, shelved: bool) -> None:
    async def scenario() -> None:
        async with cloud(sqlite_url) as c:
            server = make_server(SERVER, vm_state=vm_state, shelved_at=1.0 if shelved else None)
            for name, transition in states.TRANSITIONS.items():
                is_allowed = vm_state in transition.follows
                if vm_state == states.ERROR:
                    is_allowed = name in SHELVED_IN_ERROR if shelved else is_allowed and name != "unshelve"
                async with c.db.transaction() as tx:
                    if is_allowed:
                        await action_checks.check_state(tx, server, transition)
                        continue
                    message = rf"^Cannot '{transition.verb}' instance {SERVER} while it is in vm_state {vm_state}$"
                    with pytest.raises(Conflict, match=message):
                        await action_checks.check_state(tx, server, transition)

    run(scenario())


def test_unfinished_operation_refuses_actions(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, SERVER, host="host1")
            assert (await find_ready(c)).id == SERVER
            async with c.db.transaction() as tx:
                await begin(tx, Stop, server_id=SERVER, project_id=DEMO)
            with pytest.raises(Conflict, match=r"while it is in task_state powering-off$"):
                await find_ready(c)
            async with c.db.transaction() as tx:
                await tx.execute("UPDATE operations SET finished_at = 1")
            assert (await find_ready(c)).id == SERVER

    run(scenario())


def test_action_begins_one_operation_and_dry_run_none(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url) as c:
            await put_server(c.db, SERVER, host="host1")
            c.services.scheduler = scheduler = Scheduler(c.db, c.services.config.scheduler, down_seconds=600)
            checked = await act(c, SERVER, "shelve", headers=DRY)
            assert checked.status == 200, checked.body
            assert await c.db.fetch("SELECT kind FROM operations") == []
            assert (await act(c, SERVER, "shelve")).status == 202
            rows = await c.db.fetch("SELECT kind, server_id, project_id, user_id, host FROM operations")
            assert rows == [
                {"kind": "shelve", "server_id": SERVER, "project_id": DEMO, "user_id": "member-id", "host": "host1"}
            ]
            for headers in (DRY, {}):
                assert fault(await act(c, SERVER, "shelve", headers=headers))[0] == 409
            assert len(await c.db.fetch("SELECT kind FROM operations")) == 1
            await scheduler.close()

    run(scenario())


def test_destination_exists_and_is_another_host(database_url: str) -> None:
    async def scenario() -> None:
        async with cloud(database_url, hosts=2) as c:
            server = make_server(host="host1")
            for host in (None, "host2"):
                await action_checks.check_destination(c.db, server, host)
            for host, message in (
                ("host1", "The target host can't be the same one."),
                ("host3", "Compute host host3 could not be found."),
            ):
                with pytest.raises(BadRequest) as refusal:
                    await action_checks.check_destination(c.db, server, host)
                assert refusal.value.message == message

    run(scenario())
