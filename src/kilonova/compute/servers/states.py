"""The state table of servers: which action is allowed in which `vm_state`, and which state follows.

`vm_state` is stored. `task_state` is that of the running operation. `status` is derived from both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

from kilonova.operations import Failed

BUILDING = "building"
ACTIVE = "active"
STOPPED = "stopped"
ERROR = "error"
DELETED = "deleted"
RESIZED = "resized"
SHELVED = "shelved"
SHELVED_OFFLOADED = "shelved_offloaded"
PAUSED = "paused"
SUSPENDED = "suspended"
RESCUED = "rescued"
SOFT_DELETED = "soft-delete"

NOSTATE, RUNNING, HALTED, SHUTDOWN, CRASHED, SAVED = 0, 1, 3, 4, 6, 7
"""Power states of a guest. A paused guest is halted, a suspended one saved."""

STATUS = {
    BUILDING: "BUILD",
    ACTIVE: "ACTIVE",
    STOPPED: "SHUTOFF",
    ERROR: "ERROR",
    DELETED: "DELETED",
    RESIZED: "VERIFY_RESIZE",
    SHELVED: "SHELVED",
    SHELVED_OFFLOADED: "SHELVED_OFFLOADED",
    PAUSED: "PAUSED",
    SUSPENDED: "SUSPENDED",
    RESCUED: "RESCUE",
    SOFT_DELETED: "SOFT_DELETED",
}

# Task states with a status of their own.
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
    "updating_password": "PASSWORD",
}

# Values of the status filter. Some match nothing, because no operation leads to them.
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
    """`verb` is for error messages; `follows` maps each allowed state to the states that may follow.

    `with_shares`: whether a server with file shares may perform the action.
    """

    verb: str
    follows: Mapping[str, tuple[str, ...]]
    with_shares: bool = True

    @property
    def allowed(self) -> Collection[str]:
        return self.follows.keys()

    def allows(self, vm_state: str, *, shelved: bool) -> bool:
        """Whether a server in this state may perform the action.

        A shelved server in error may only perform actions that are allowed in error and in a shelved state: others
        would leave its image behind. A server in error that is not shelved cannot be unshelved.
        """
        if vm_state != ERROR:
            return vm_state in self.allowed
        others = self.follows.keys() - {ERROR}
        return ERROR in self.follows and bool(others & _SHELVED if shelved else others - _SHELVED)


def _from(*states: str, to: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(states, (to,))


def _same(*states: str) -> dict[str, tuple[str, ...]]:
    return {state: (state,) for state in states}


_SHELVED = frozenset({SHELVED, SHELVED_OFFLOADED})
# States with a guest that its host alone can stop and start, so that a soft-deleted server can be restored.
_RECLAIMED = (ACTIVE, STOPPED, PAUSED, SUSPENDED, RESCUED, ERROR)
_WITH_VOLUMES = (ACTIVE, STOPPED, PAUSED, RESIZED, SHELVED, SHELVED_OFFLOADED, SOFT_DELETED)

TRANSITIONS = {
    "os-start": Transition("start", _from(STOPPED, to=ACTIVE)),
    "os-stop": Transition("stop", _from(ACTIVE, ERROR, to=STOPPED)),
    "reboot SOFT": Transition("reboot", _from(ACTIVE, to=ACTIVE)),
    "reboot HARD": Transition("reboot", _from(ACTIVE, STOPPED, PAUSED, SUSPENDED, ERROR, to=ACTIVE)),
    "pause": Transition("pause", _from(ACTIVE, to=PAUSED)),
    "unpause": Transition("unpause", _from(PAUSED, to=ACTIVE)),
    "suspend": Transition("suspend", _from(ACTIVE, to=SUSPENDED), with_shares=False),
    "resume": Transition("resume", _from(SUSPENDED, to=ACTIVE)),
    "rescue": Transition("rescue", _from(ACTIVE, STOPPED, ERROR, to=RESCUED)),
    "unrescue": Transition("unrescue", _from(RESCUED, to=ACTIVE)),
    "changePassword": Transition("changePassword", _same(ACTIVE)),
    "trigger_crash_dump": Transition("trigger_crash_dump", _same(ACTIVE, PAUSED, RESCUED, RESIZED, ERROR)),
    "delete": Transition("delete", _from(*(STATUS.keys() - {DELETED}), to=DELETED)),
    # With `compute.reclaim_seconds`.
    "soft delete": Transition("delete", _from(*_RECLAIMED, to=SOFT_DELETED)),
    "restore": Transition("restore", _from(SOFT_DELETED, to=ACTIVE)),
    "shelve": Transition("shelve", _from(ACTIVE, STOPPED, PAUSED, SUSPENDED, to=SHELVED), with_shares=False),
    "shelveOffload": Transition("shelveOffload", _from(SHELVED, to=SHELVED_OFFLOADED)),
    "unshelve": Transition("unshelve", _from(SHELVED, SHELVED_OFFLOADED, ERROR, to=ACTIVE)),
    "resize": Transition("resize", _from(ACTIVE, STOPPED, to=RESIZED), with_shares=False),
    "migrate": Transition("migrate", _from(ACTIVE, STOPPED, to=RESIZED), with_shares=False),
    # Both lead to the state before the resize.
    "confirmResize": Transition("confirmResize", {RESIZED: (ACTIVE, STOPPED)}),
    "revertResize": Transition("revertResize", {RESIZED: (ACTIVE, STOPPED)}),
    "rebuild": Transition(
        "rebuild", {**_from(ACTIVE, ERROR, to=ACTIVE), **_from(STOPPED, to=STOPPED)}, with_shares=False
    ),
    "createImage": Transition("createImage", _same(ACTIVE, STOPPED, PAUSED, SUSPENDED)),
    "createBackup": Transition("createBackup", _same(ACTIVE, STOPPED, PAUSED, SUSPENDED)),
    "os-migrateLive": Transition("os-migrateLive", _same(ACTIVE, PAUSED), with_shares=False),
    # Volume attachments do not change the state.
    "attach_volume": Transition("attach_volume", _same(*_WITH_VOLUMES)),
    "detach_volume": Transition("detach_volume", _same(*_WITH_VOLUMES)),
    # Neither do interfaces, shares, metadata and security groups.
    "attach_share": Transition("attach_share", _same(STOPPED)),
    "detach_share": Transition("detach_share", _same(STOPPED, ERROR)),
    "attach_interface": Transition("attach_interface", _same(ACTIVE, STOPPED, PAUSED)),
    "detach_interface": Transition("detach_interface", _same(ACTIVE, STOPPED, PAUSED)),
    "metadata": Transition("update metadata", _same(ACTIVE, STOPPED, PAUSED, SUSPENDED)),
    "tags": Transition("update tags", _same(ACTIVE, STOPPED, PAUSED, SUSPENDED)),
    "swap_volume": Transition("swap_volume", _same(ACTIVE, PAUSED, RESIZED)),
    # Before 2.95 a server that ran is started.
    "evacuate": Transition(
        "evacuate", {ACTIVE: (ACTIVE, STOPPED), **_from(STOPPED, ERROR, to=STOPPED)}, with_shares=False
    ),
    # An offloaded server has no host, so it cannot become active.
    "os-resetState": Transition(
        "os-resetState",
        {
            **dict.fromkeys(
                (ACTIVE, STOPPED, PAUSED, SUSPENDED, RESCUED, ERROR, RESIZED, SHELVED, SOFT_DELETED), (ACTIVE, ERROR)
            ),
            **_from(BUILDING, SHELVED_OFFLOADED, to=ERROR),
        },
    ),
}

_OF_GUEST = (ACTIVE, STOPPED, PAUSED, SUSPENDED)
# Changes that no action names.
CHANGES = {
    "boot": Transition("boot", _from(BUILDING, to=ACTIVE)),
    "failure": Transition("fail", _from(*(STATUS.keys() - {DELETED}), to=ERROR)),
    # The stop of a paused or suspended guest cannot be undone.
    "memory loss": Transition("stop", _from(PAUSED, SUSPENDED, to=STOPPED)),
    # In the other states, only the power state follows the guest.
    "power state sync": Transition(
        "sync", {**dict.fromkeys(_OF_GUEST, _OF_GUEST), **_same(RESIZED, SHELVED, RESCUED, SOFT_DELETED, ERROR)}
    ),
}


class InvalidTransition(Failed):
    """A change of a server's state that the state table does not have."""


@cache
def states_before(change: str, after: str) -> frozenset[str]:
    """The states in which this action or change leads to the state `after`, and `after` itself, for repetitions."""
    follows = (TRANSITIONS.get(change) or CHANGES[change]).follows
    before = {state for state, following in follows.items() if after in following}
    if not before:
        raise InvalidTransition(f"'{change}' never leads to the state {after}")
    return frozenset({*before, after})


def status(vm_state: str, task_state: str | None) -> str:
    if task_state is not None and vm_state != DELETED:
        shown = STATUS_OF_TASK.get(task_state)
        if shown is not None:
            return shown
    return STATUS[vm_state]


def draw() -> str:
    """The transitions as a Mermaid diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {BUILDING}: create"]
    lines += [f"    {BUILDING} --> {ACTIVE}: built", f"    {BUILDING} --> {ERROR}: no host could build it"]
    for action, transition in TRANSITIONS.items():
        for state, following in sorted(transition.follows.items()):
            lines += [f"    {_name(state)} --> {_name(after)}: {action}" for after in following]
    return "\n".join([*lines, f"    {DELETED} --> [*]"])


def _name(state: str) -> str:
    """The state as an identifier of the diagram."""
    return state.replace("-", "_")
