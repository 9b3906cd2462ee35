"""The state table of servers: its states, its statuses and its diagram agree with each other."""

from __future__ import annotations

import re
from itertools import chain

import pytest

import kilonova.compute.operations  # noqa: F401 - registers operations
from kilonova.compute.servers import states
from kilonova.operations.definition import Step, Wait, all_kinds

STATES = {value for name, value in vars(states).items() if name.isupper() and isinstance(value, str) and name[0] != "_"}


def test_every_state_has_a_status_that_can_be_filtered() -> None:
    assert states.STATUS.keys() == STATES
    assert {*states.STATUS.values(), *states.STATUS_OF_TASK.values()} <= states.STATUSES


@pytest.mark.parametrize("action", states.TRANSITIONS)
def test_transition_has_known_states(action: str) -> None:
    transition = states.TRANSITIONS[action]
    assert transition.verb
    assert transition.allowed
    assert set(transition.allowed) <= STATES - {states.DELETED}, "a deleted server allows nothing"
    for following in transition.follows.values():
        assert following
        assert set(following) <= STATES


def test_every_state_can_be_reached_and_left() -> None:
    reached = set(chain.from_iterable(chain(*move.follows.values()) for move in states.TRANSITIONS.values()))
    assert reached == STATES - {states.BUILDING}, "a server is building from its creation"
    assert states.TRANSITIONS["delete"].allowed == STATES - {states.DELETED}


@pytest.mark.parametrize(
    ("action", "opposite"),
    [("pause", "unpause"), ("suspend", "resume"), ("rescue", "unrescue"), ("os-stop", "os-start")],
)
def test_opposite_leads_back_to_active(action: str, opposite: str) -> None:
    (between,) = set(chain(*states.TRANSITIONS[action].follows.values()))
    assert states.TRANSITIONS[opposite].follows == {between: (states.ACTIVE,)}


def test_status_of_task_state() -> None:
    assert states.status(states.ACTIVE, None) == "ACTIVE"
    assert states.status(states.ACTIVE, "powering-off") == "ACTIVE", "most task states have no status"
    assert states.status(states.STOPPED, "resize_finish") == "RESIZE"
    assert states.status(states.ERROR, "rebuilding") == "REBUILD"
    assert states.status(states.DELETED, "rebuilding") == "DELETED"


def test_task_states_with_a_status_are_those_of_operations() -> None:
    used = {kind.task_state for kind in all_kinds()}
    for kind in all_kinds():
        used |= {step.task_state for step in kind.table().steps if isinstance(step, Step | Wait)}
    assert states.STATUS_OF_TASK.keys() <= used


def test_diagram_has_every_state_and_transition() -> None:
    arrows = re.findall(r"^    (\S+) --> (\S+): (.+)$", states.draw(), re.MULTILINE)
    assert {name for *both, _ in arrows for name in both} == {"[*]", *(state.replace("-", "_") for state in STATES)}
    for action, transition in states.TRANSITIONS.items():
        drawn = {(before, after) for before, after, label in arrows if label == action}
        expected = {(before, after) for before, following in transition.follows.items() for after in following}
        assert drawn == {(before.replace("-", "_"), after.replace("-", "_")) for before, after in expected}, action
    assert not re.search(r"\w-\w", re.sub(r": .+", "", states.draw().partition("\n")[2])), "names are identifiers"
