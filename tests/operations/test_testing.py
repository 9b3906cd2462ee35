"""The generated tests pass for a correct operation, and fail for incorrect ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kilonova.operations import Operation, Step, StepResult, Wait, begin, post_event
from kilonova.operations.execution import FORWARD
from kilonova.operations.testing import Fault, OperationTests
from kilonova.store import Database, Transaction


class World:
    """State outside the worker: ports at a service, guests on a host."""

    def __init__(self) -> None:
        self.ports: Counter[str] = Counter()
        self.guests: Counter[str] = Counter()


CLAIM = StepResult("claim", str)


async def claim(op: Operation, tx: Transaction) -> str:
    await tx.execute("INSERT INTO claims VALUES ('s', 'h1')")
    return "h1"


async def release(op: Operation, tx: Transaction) -> None:
    await tx.execute("DELETE FROM claims WHERE server = 's'")


async def make_port(op: Operation) -> None:
    op.services.ports["s"] = 1


async def drop_port(op: Operation) -> None:
    op.services.ports.pop("s", None)


async def spawn(op: Operation) -> None:
    assert op.result(CLAIM) == "h1"
    op.services.guests["s"] = 1


async def destroy(op: Operation) -> None:
    op.services.guests.pop("s", None)


class Build(Operation):
    kind = "test build"
    action = "create"
    steps = (
        Step(CLAIM, claim, release, deadline=300, transaction=True, undo_transaction=True),
        Step("make port", make_port, drop_port, deadline=300),
        Wait("plugged", key=lambda op: "plugged", deadline=300),
        Step("spawn", spawn, destroy, deadline=300),
    )


async def make_another_port(op: Operation) -> None:
    op.services.ports["s"] += 1


class Repeating(Operation):
    kind = "test repeating"
    action = "create"
    steps = (Step("make port", make_another_port, drop_port, deadline=300),)


async def drop_nothing(op: Operation) -> None: ...


class Forgetful(Operation):
    kind = "test forgetful"
    action = "create"
    steps = (
        Step("make port", make_port, drop_nothing, deadline=300),
        Step("spawn", drop_nothing, None, deadline=300, why="it does nothing"),
    )


async def drop_once(op: Operation) -> None:
    op.services.ports.subtract("s")


class Subtracting(Operation):
    kind = "test subtracting"
    action = "create"
    steps = (Step("make port", make_port, drop_once, deadline=300),)


class WorldTests(OperationTests):
    async def prepare(self, db: Database) -> World:
        async with db.transaction() as tx:
            await tx.execute("CREATE TABLE claims (server TEXT PRIMARY KEY, host TEXT)")
        return World()

    async def begin(self, tx: Transaction, world: World) -> str:
        return await begin(tx, self.operation, server_id="s")

    async def list_resources(self, db: Database, world: World) -> Any:
        return dict(+world.ports), -world.ports, dict(world.guests), await db.fetch("SELECT * FROM claims")

    async def post_awaited_event(self, db: Database, world: World, op: str) -> None:
        async with db.transaction() as tx:
            await post_event(tx, "plugged")


class TestBuild(WorldTests):
    operation = Build


class RepeatingTests(WorldTests):
    operation = Repeating


class ForgetfulTests(WorldTests):
    operation = Forgetful


class SubtractingTests(WorldTests):
    operation = Subtracting


@pytest.mark.parametrize(
    "check",
    [
        lambda url: RepeatingTests().test_each_step_twice(url),
        lambda url: RepeatingTests().test_killed_at_each_step(url),
        lambda url: ForgetfulTests()._expect_clean_failure(url, ForgetfulTests().each_step_failed()),
        lambda url: SubtractingTests()._expect_clean_failure(url, SubtractingTests().each_undo_twice()),
        lambda url: SubtractingTests()._expect_clean_failure(url, SubtractingTests().killed_at_each_undo()),
    ],
)
def test_incorrect_operations_are_detected(sqlite_url: str, check: Any) -> None:
    with pytest.raises(AssertionError):
        check(sqlite_url)


def test_unreached_fault_is_detected(sqlite_url: str) -> None:
    with pytest.raises(AssertionError, match="not reached:"):
        ForgetfulTests()._expect_success(sqlite_url, Fault("again", FORWARD, "after", frozenset({"no such step"})))
