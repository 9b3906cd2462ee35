"""Definitions of operations: step tables, plans and invalid definitions."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct, ValidationError

from kilonova.operations import Operation, Step, StepResult, Wait, get_kind
from kilonova.operations.definition import InvalidDefinition, NoParams, UnknownStep, find_kind
from tests.operations.support import ScriptParams, ThreeSteps, begin_operation, scripted
from tests.support import run
from tests.support.databases import opened


def define(*steps: Step[Any] | Wait[Any], retired: tuple[Step[Any] | Wait[Any], ...] = ()) -> type[Operation]:
    class Defined(Operation, register=False):
        kind = "declared"
        action = "define"

    Defined.steps = steps
    Defined.retired = retired
    return Defined


def step(name: str | StepResult[Any], **options: object) -> Step[Any]:
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
def test_invalid_steps_are_refused(steps: tuple[Step[Any], ...], complaint: str) -> None:
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


class Size(Struct, frozen=True):
    gigabytes: int


class Sized(Operation[Size], register=False):
    kind = "sized"
    action = "size"
    steps = (step("a"),)


class LikeSized(Sized, register=False):
    kind = "like sized"


def test_params_type_is_the_type_argument() -> None:
    assert (Sized.params_type, LikeSized.params_type) == (Size, Size)
    assert ThreeSteps.params_type is ScriptParams
    assert define(step("a")).params_type is NoParams


def test_begin_refuses_parameters_of_another_operation(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with opened(sqlite_url) as db:
            with pytest.raises(TypeError, match="sized has the parameters Size"):
                await begin_operation(db, Sized, params=ScriptParams(size=3))
            assert await db.fetch("SELECT id FROM operations") == []

    run(scenario())


def test_get_kind_checks_the_parameters() -> None:
    assert get_kind("test three", ScriptParams) is ThreeSteps
    with pytest.raises(InvalidDefinition, match="has the parameters ScriptParams"):
        get_kind("test three", Size)


def test_results_are_decoded_to_the_declared_type() -> None:
    table = define(step(StepResult("a", Size)), step("b")).table()
    assert table.decode_results('{"a": {"gigabytes": 3}, "b": 1, "c": 2}') == {"a": Size(3)}
    with pytest.raises(ValidationError):
        table.decode_results('{"a": {"gigabytes": "three"}}')
