"""Declarations: what makes a table, and what is refused."""

from __future__ import annotations

import pytest

from kilonova.operations import Operation, Step, Wait
from kilonova.operations.table import UnknownStep, WrongTable, find
from tests.operations.support import Three, act


def declare(*steps: Step | Wait, retired: tuple[Step | Wait, ...] = ()) -> type[Operation]:
    class Declared(Operation, register=False):
        kind = "declared"
        action = "declare"

    Declared.steps = steps
    Declared.retired = retired
    return Declared


def step(name: str, **options: object) -> Step:
    return Step(**{"name": name, "action": act("x"), "undo": act("y"), "deadline": 1.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "steps, complaint",
    [
        ((), "no steps"),
        ((step("a"), step("a")), "same name"),
        ((step("a", undo=None),), "does not say why"),
        ((step("a", deadline=0.0),), "no deadline"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(steps: tuple[Step, ...], complaint: str) -> None:
    with pytest.raises(WrongTable, match=complaint):
        declare(*steps).table()


def test_kinds_are_registered_once() -> None:
    assert find("test three") is Three
    with pytest.raises(WrongTable, match="test three"):
        type("Again", (Operation,), {"kind": "test three", "action": "x", "steps": ()})


def test_the_table_may_stand_above_its_functions() -> None:
    class Late(Operation, register=False):
        kind = "late"
        action = "late"
        steps = lambda: (Step("a", later, None, deadline=1, why="nothing to undo"),)  # noqa: E731

    async def later(op: Operation) -> None: ...

    assert Late.table().names == ["a"]
    assert Late.table() is Late.table()


def test_an_operation_keeps_the_plan_it_began_with() -> None:
    old = declare(step("a"), step("b"), step("c")).table()
    new = declare(step("a"), step("b2"), step("c"), retired=(step("b"),)).table()
    assert [entry.name for entry in new.plan(old.text, "b")] == ["a", "b", "c"]
    with pytest.raises(UnknownStep, match="b2"):
        old.plan(new.text, "a")
    with pytest.raises(UnknownStep, match="nowhere"):
        new.plan(new.text, "nowhere")
