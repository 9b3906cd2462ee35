"""Task states of the steps of operations, for statements: servers do not store their task state."""

from __future__ import annotations

from collections.abc import Iterable

from kilonova.operations.definition import all_kinds


def task_states_of_steps() -> dict[str, str]:
    """The task state of every step that has one, by `kind/step`."""
    states = {
        f"{operation.kind}/{step.name}": step.task_state or operation.task_state
        for operation in all_kinds()
        for step in operation.table().steps
    }
    return {step: state for step, state in states.items() if state}


def steps_with_task_states(task_states: Iterable[str]) -> list[str]:
    """`kind/step` of every step with one of these task states."""
    wanted = set(task_states)
    return [step for step, state in task_states_of_steps().items() if state in wanted]
