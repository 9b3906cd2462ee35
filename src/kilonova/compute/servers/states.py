"""The states of a server, in one place: what is shown, what may be asked for, and what follows.

`vm_state` is what a server is while nothing happens to it. `task_state` is that of the running operation.
`status`, the word that users see, is derived from both.
"""

from __future__ import annotations

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
    """`verb` is the word in error messages; `follows` the state when the operation is done, None for unchanged."""

    verb: str
    allowed: frozenset[str]
    follows: str | None


TRANSITIONS = {
    "os-start": Transition("start", frozenset({STOPPED}), ACTIVE),
    "os-stop": Transition("stop", frozenset({ACTIVE, ERROR}), STOPPED),
    "reboot SOFT": Transition("reboot", frozenset({ACTIVE}), ACTIVE),
    "reboot HARD": Transition("reboot", frozenset({ACTIVE, STOPPED, ERROR}), ACTIVE),
    "delete": Transition("delete", frozenset(STATUS) - {DELETED}, DELETED),
    "shelve": Transition("shelve", frozenset({ACTIVE, STOPPED}), SHELVED),
    "shelveOffload": Transition("shelveOffload", frozenset({SHELVED}), SHELVED_OFFLOADED),
    "unshelve": Transition("unshelve", frozenset({SHELVED, SHELVED_OFFLOADED}), ACTIVE),
    "resize": Transition("resize", frozenset({ACTIVE, STOPPED}), RESIZED),
    "migrate": Transition("migrate", frozenset({ACTIVE, STOPPED}), RESIZED),
    # Both go on to the state that the server had before it was resized.
    "confirmResize": Transition("confirmResize", frozenset({RESIZED}), ACTIVE),
    "revertResize": Transition("revertResize", frozenset({RESIZED}), ACTIVE),
    "os-migrateLive": Transition("os-migrateLive", frozenset({ACTIVE}), None),
    # From 2.95 what was evacuated is left stopped.
    "evacuate": Transition("evacuate", frozenset({ACTIVE, STOPPED, ERROR}), ACTIVE),
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
        for state in sorted(transition.allowed):
            lines.append(f"    {state} --> {transition.follows or state}: {action}")
    return "\n".join([*lines, f"    {DELETED} --> [*]"])
