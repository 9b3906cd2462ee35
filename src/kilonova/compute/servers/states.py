"""The states of a server, in one place: what is shown, what may be asked for, and what follows.

`vm_state` is what a server is while nothing happens to it. `task_state` is that of the running operation.
`status`, the word that users see, is derived from both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

BUILDING = "building"
ACTIVE = "active"
STOPPED = "stopped"
ERROR = "error"
DELETED = "deleted"
RESIZED = "resized"
SHELVED = "shelved"
SHELVED_OFFLOADED = "shelved_offloaded"

NOSTATE, RUNNING, SHUTDOWN = 0, 1, 4

STATUS = {
    BUILDING: "BUILD",
    ACTIVE: "ACTIVE",
    STOPPED: "SHUTOFF",
    ERROR: "ERROR",
    DELETED: "DELETED",
    RESIZED: "VERIFY_RESIZE",
    SHELVED: "SHELVED",
    SHELVED_OFFLOADED: "SHELVED_OFFLOADED",
}

# Tasks that show as a status of their own while they run.
STATUS_OF_TASK = {
    "rebooting": "REBOOT",
    "rebooting_hard": "HARD_REBOOT",
    "resize_prep": "RESIZE",
    "resize_migrating": "RESIZE",
    "resize_migrated": "RESIZE",
    "resize_finish": "RESIZE",
    "resize_reverting": "REVERT_RESIZE",
    "migrating": "MIGRATING",
    "rebuilding": "REBUILD",
}

# Every word that a status filter may use; those of states that no operation leads to match nothing.
STATUSES = frozenset(
    {
        "ACTIVE",
        "BUILD",
        "DELETED",
        "ERROR",
        "HARD_REBOOT",
        "MIGRATING",
        "PASSWORD",
        "PAUSED",
        "REBOOT",
        "REBUILD",
        "RESCUE",
        "RESIZE",
        "REVERT_RESIZE",
        "SHELVED",
        "SHELVED_OFFLOADED",
        "SHUTOFF",
        "SOFT_DELETED",
        "SUSPENDED",
        "UNKNOWN",
        "VERIFY_RESIZE",
    }
)


@dataclass(frozen=True)
class Transition:
    """`verb` is the word in error messages; `follows` says of each state that it is allowed in what may come of it."""

    verb: str
    follows: Mapping[str, tuple[str, ...]]

    @property
    def allowed(self) -> Collection[str]:
        return self.follows.keys()


def _from(*states: str, to: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(states, (to,))


def _same(*states: str) -> dict[str, tuple[str, ...]]:
    return {state: (state,) for state in states}


TRANSITIONS = {
    "os-start": Transition("start", _from(STOPPED, to=ACTIVE)),
    "os-stop": Transition("stop", _from(ACTIVE, ERROR, to=STOPPED)),
    "reboot SOFT": Transition("reboot", _from(ACTIVE, to=ACTIVE)),
    "reboot HARD": Transition("reboot", _from(ACTIVE, STOPPED, ERROR, to=ACTIVE)),
    "delete": Transition("delete", _from(*(STATUS.keys() - {DELETED}), to=DELETED)),
    "shelve": Transition("shelve", _from(ACTIVE, STOPPED, to=SHELVED)),
    "shelveOffload": Transition("shelveOffload", _from(SHELVED, to=SHELVED_OFFLOADED)),
    "unshelve": Transition("unshelve", _from(SHELVED, SHELVED_OFFLOADED, to=ACTIVE)),
    "resize": Transition("resize", _from(ACTIVE, STOPPED, to=RESIZED)),
    "migrate": Transition("migrate", _from(ACTIVE, STOPPED, to=RESIZED)),
    # Both go on to the state that the server had before it was resized.
    "confirmResize": Transition("confirmResize", {RESIZED: (ACTIVE, STOPPED)}),
    "revertResize": Transition("revertResize", {RESIZED: (ACTIVE, STOPPED)}),
    "rebuild": Transition("rebuild", {**_from(ACTIVE, ERROR, to=ACTIVE), **_from(STOPPED, to=STOPPED)}),
    "createImage": Transition("createImage", {ACTIVE: (ACTIVE,), STOPPED: (STOPPED,)}),
    "os-migrateLive": Transition("os-migrateLive", _from(ACTIVE, to=ACTIVE)),
    # Volumes come and go, and a server stays what it is.
    "attach_volume": Transition("attach_volume", _same(ACTIVE, STOPPED, RESIZED, SHELVED, SHELVED_OFFLOADED)),
    "detach_volume": Transition("detach_volume", _same(ACTIVE, STOPPED, RESIZED, SHELVED, SHELVED_OFFLOADED)),
    "swap_volume": Transition("swap_volume", _same(ACTIVE, RESIZED)),
    # Only what ran runs again, and that before 2.95.
    "evacuate": Transition("evacuate", {ACTIVE: (ACTIVE, STOPPED), **_from(STOPPED, ERROR, to=STOPPED)}),
}


def status(vm_state: str, task_state: str | None) -> str:
    if task_state is not None and vm_state != DELETED:
        shown = STATUS_OF_TASK.get(task_state)
        if shown is not None:
            return shown
    return STATUS[vm_state]


def draw() -> str:
    """The transitions as a mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {BUILDING}: create"]
    lines += [f"    {BUILDING} --> {ACTIVE}: built", f"    {BUILDING} --> {ERROR}: no host could build it"]
    for action, transition in TRANSITIONS.items():
        for state, following in sorted(transition.follows.items()):
            lines += [f"    {state} --> {next_state}: {action}" for next_state in following]
    return "\n".join([*lines, f"    {DELETED} --> [*]"])
