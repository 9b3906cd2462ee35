"""Calls of the API on servers in all states, compared with the state table: each call in each state, and random
sequences of calls.

A failed test prints the shortest sequence of calls that it found. `FUZZ=20 make test
TESTS=tests/compute/test_state_machine.py` tries twenty times as many sequences, `FUZZ_SEED=2` tries others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kilonova.compute.servers import states
from kilonova.compute.servers.states import (
    ACTIVE,
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
    Transition,
)
from tests.fuzz.support import EXAMPLES_FACTOR, SEED
from tests.support.server_machine import HOST_DOWN, ServerMachine
from tests.support.server_model import CALLS, refusal

EXAMPLES, STEPS = 13, 50
SETTINGS = settings(
    max_examples=EXAMPLES * EXAMPLES_FACTOR,
    stateful_step_count=STEPS,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def test_model_has_every_row_of_the_state_table() -> None:
    rows = {call.transition for call in CALLS.values() if call.transition}
    assert rows | {"delete", "soft delete"} == states.TRANSITIONS.keys()


class ImageBacked(ServerMachine):
    pass


class ImageBackedAndReclaimed(ServerMachine):
    reclaims = offloads = True


class VolumeBacked(ServerMachine):
    volume_backed = True


class VolumeBackedAndReclaimed(ServerMachine):
    volume_backed = reclaims = True


@pytest.mark.parametrize("machine", [ImageBacked, ImageBackedAndReclaimed, VolumeBacked, VolumeBackedAndReclaimed])
def test_random_calls_follow_the_state_table(machine: type[ServerMachine]) -> None:
    run_state_machine_as_test(seed(SEED)(machine), settings=SETTINGS)


# Each call in each state

PATHS = {
    ACTIVE: (),
    STOPPED: ("os-stop",),
    PAUSED: ("pause",),
    SUSPENDED: ("suspend",),
    RESCUED: ("rescue from image",),
    RESIZED: ("resize",),
    SHELVED: ("shelve",),
    SHELVED_OFFLOADED: ("shelve", "shelveOffload"),
    ERROR: ("os-resetState error",),
    SOFT_DELETED: ("delete",),
    DELETED: ("forceDelete",),
}
# A volume-backed server is offloaded when it is shelved.
VOLUME_PATHS = {**PATHS, SHELVED: ("shelve, destroy fails",), SHELVED_OFFLOADED: ("shelve",)}
# Calls that need something else before or after the server comes to its state.
BEFORE_PATH = dict.fromkeys(("detach_volume", "swap_volume"), "attach_volume")
AFTER_PATH = dict.fromkeys(("evacuate", "evacuate before 2.95"), HOST_DOWN)


class ReclaimedWithoutOffload(ServerMachine):
    reclaims = True


@pytest.mark.parametrize(
    "machine, paths",
    [(ReclaimedWithoutOffload, PATHS), (VolumeBackedAndReclaimed, VOLUME_PATHS)],
    ids=["image", "volume"],
)
@pytest.mark.parametrize("state", PATHS)
def test_each_call_in_each_state(machine: type[ServerMachine], paths: dict[str, tuple[str, ...]], state: str) -> None:
    server = machine()
    try:
        reach(server, state, paths[state])
        assert server.facts is not None
        refused = [name for name in CALLS if refusal(name, server.facts, server.table)]
        for name in refused:
            server.act(name)
        for name in [name for name in CALLS if name not in refused or name in (*BEFORE_PATH, *AFTER_PATH)]:
            first, last = BEFORE_PATH.get(name), AFTER_PATH.get(name)
            reach(server, state, [call for call in (first, *paths[state], last) if call is not None])
            server.act(name)
    finally:
        server.teardown()


def reach(server: ServerMachine, state: str, path: Iterable[str]) -> None:
    """Boot a new server and bring it to the state."""
    if not server.is_without_server:
        server.act("unlock")
        server.act("forceDelete")
    server.boot(hosts_fail=False)
    for call in path:
        server.act(call)
    assert server.facts is not None
    assert server.facts.vm_state == state


# The tests above can fail


def replaced(action: str, **changes: tuple[str, ...]) -> dict[str, Transition]:
    """The state table with another row for the action."""
    row = states.TRANSITIONS[action]
    return {**states.TRANSITIONS, action: Transition(row.verb, changes)}


@pytest.mark.parametrize(
    "wrong, calls, words",
    [
        (replaced("pause", active=(SUSPENDED,)), ["pause"], "pause in active leads to ('paused', 3)"),
        (replaced("pause", active=(PAUSED,), stopped=(PAUSED,)), ["os-stop", "pause"], "pause in stopped: 409"),
    ],
    ids=["other state follows", "call is refused"],
)
def test_shortest_sequence_that_breaks_a_wrong_table_is_printed(
    wrong: dict[str, Transition], calls: list[str], words: str
) -> None:
    class Wrong(ServerMachine):
        choices = ("os-stop", "pause")
        table = wrong

    with pytest.raises(AssertionError, match=re.escape(words)) as found:
        run_state_machine_as_test(seed(1)(Wrong), settings=settings(SETTINGS, stateful_step_count=8))
    printed = [line for line in "\n".join(found.value.__notes__).splitlines() if line.startswith("state")]
    assert printed == [
        "state = Wrong()",
        "state.boot(hosts_fail=False)",
        *(f"state.act(call={call!r})" for call in calls),
        "state.teardown()",
    ]
