"""Definitions of operations: step tables, plans and invalid definitions."""

from __future__ import annotations

import pytest

from kilonova.operations import Operation, Step, Wait
from kilonova.operations.definition import InvalidDefinition, UnknownStep, find_kind
from tests.operations.support import ThreeSteps, scripted


def define(*steps: Step | Wait, retired: tuple[Step | Wait, ...] = ()) -> type[Operation]:
    class Defined(Operation, register=False):
        kind = "declared"
        action = "define"

    Defined.steps = steps
    Defined.retired = retired
    return Defined


def step(name: str, **options: object) -> Step:
    return Step(**{"name": name, "action": scripted("x"), "undo": scripted("y"), "deadline": 1.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "steps, complaint",
    [
        ((), "no steps"),
        ((step("a"), step("a")), "same name"),
        ((step("a", undo=None),), "needs a reason"),
        ((step("a", deadline=0.0),), "positive deadline"),
    ],
)
def test_invalid_steps_are_refused(steps: tuple[Step, ...], complaint: str) -> None:
    with pytest.raises(InvalidDefinition, match=complaint):
        define(*steps).table()


def test_kind_is_registered_once() -> None:
    assert find_kind("test three") is ThreeSteps
    with pytest.raises(InvalidDefinition, match="test three"):
        type("Again", (Operation,), {"kind": "test three", "action": "x", "steps": ()})


def test_steps_can_be_a_function() -> None:
    class Late(Operation, register=False):
        kind = "late"
        action = "late"
        steps = lambda: (Step("a", later, None, deadline=1, why="nothing to undo"),)  # noqa: E731

    async def later(op: Operation) -> None: ...

    assert Late.table().names == ["a"]
    assert Late.table() is Late.table()


def test_plan_of_another_release_is_kept() -> None:
    old = define(step("a"), step("b"), step("c")).table()
    new = define(step("a"), step("b2"), step("c"), retired=(step("b"),)).table()
    assert [entry.name for entry in new.plan(old.text, "b")] == ["a", "b", "c"]
    with pytest.raises(UnknownStep, match="b2"):
        old.plan(new.text, "a")
    with pytest.raises(UnknownStep, match="nowhere"):
        new.plan(new.text, "nowhere")
