"""The states of a volume: allowed statuses of each action, the status meanwhile and the final status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kilonova.http.errors import BadRequest

if TYPE_CHECKING:
    from kilonova.volume.volumes.model import Volume

CREATING = "creating"
AVAILABLE = "available"
RESERVED = "reserved"
ATTACHING = "attaching"
IN_USE = "in-use"
DETACHING = "detaching"
DOWNLOADING = "downloading"
UPLOADING = "uploading"
EXTENDING = "extending"
REVERTING = "reverting"
DELETING = "deleting"
AWAITING_TRANSFER = "awaiting-transfer"
MAINTENANCE = "maintenance"
ERROR = "error"
ERROR_DELETING = "error_deleting"
ERROR_EXTENDING = "error_extending"

# Statuses that follow from the attachments. Running and failed operations have other statuses.
ATTACHMENT_STATES = (AVAILABLE, RESERVED, ATTACHING, IN_USE, DETACHING)
# An operation is running and sets the next status.
BUSY = frozenset({CREATING, DOWNLOADING, UPLOADING, EXTENDING, REVERTING, DELETING})
# The statuses that an administrator can set.
SETTABLE = frozenset(
    {
        *(CREATING, AVAILABLE, RESERVED, ATTACHING, DETACHING, IN_USE, MAINTENANCE, DELETING, AWAITING_TRANSFER),
        *(ERROR, ERROR_DELETING, ERROR_EXTENDING, EXTENDING, DOWNLOADING, UPLOADING, "managing", "retyping"),
        *("backing-up", "restoring-backup", "error_backing-up", "error_restoring", "error_managing"),
    }
)
NEW = "(new)"
DELETED = "(deleted)"
AT_REST = "(from its attachments)"


@dataclass(frozen=True)
class Transition:
    """`meanwhile`, `then` and `failed` are None if the status does not change. `verb` is for error messages."""

    verb: str
    allowed: tuple[str, ...]
    meanwhile: str | None = None
    then: str | None = None
    failed: str | None = None


TRANSITIONS: Mapping[str, Transition] = {
    "create": Transition("create", (NEW,), CREATING, AVAILABLE, failed=ERROR),
    "delete": Transition(
        "delete", (AVAILABLE, ERROR, ERROR_DELETING, ERROR_EXTENDING), DELETING, DELETED, failed=ERROR_DELETING
    ),
    "os-extend": Transition("extend", (AVAILABLE,), EXTENDING, AT_REST, failed=ERROR_EXTENDING),
    # From 3.42 on.
    "os-extend in-use": Transition("extend", (AVAILABLE, IN_USE), EXTENDING, AT_REST, failed=ERROR_EXTENDING),
    "os-reimage": Transition("re-image", (AVAILABLE, ERROR), DOWNLOADING, AT_REST, failed=ERROR),
    "os-reimage reserved": Transition("re-image", (AVAILABLE, ERROR, RESERVED), DOWNLOADING, AT_REST, failed=ERROR),
    "os-volume_upload_image": Transition("upload", (AVAILABLE,), UPLOADING, AT_REST, failed=AT_REST),
    "os-volume_upload_image force": Transition("upload", (AVAILABLE, IN_USE), UPLOADING, AT_REST, failed=AT_REST),
    "revert": Transition("revert", (AVAILABLE,), REVERTING, AT_REST, failed=ERROR),
    "os-retype": Transition("retype", (AVAILABLE, IN_USE)),
    "os-update_readonly_flag": Transition("make read-only or writable", (AVAILABLE,)),
    "os-reserve": Transition("reserve", (AVAILABLE,), then=ATTACHING),
    "os-unreserve": Transition("unreserve", (ATTACHING,), then=AVAILABLE),
    "os-attach": Transition("attach", (AVAILABLE, ATTACHING), then=IN_USE),
    "os-begin_detaching": Transition("detach", (IN_USE,), then=DETACHING),
    "os-roll_detaching": Transition("keep", (DETACHING,), then=IN_USE),
    # Detaching a detached volume is allowed.
    "os-detach": Transition("detach", (AVAILABLE, IN_USE, DETACHING), then=AT_REST),
    "attach": Transition("attach", (AVAILABLE, RESERVED, ATTACHING, IN_USE, DETACHING), then=AT_REST),
    "snapshot": Transition("snapshot", (AVAILABLE,)),
    # From 3.66 on, and before it with `force`.
    "snapshot in-use": Transition("snapshot", (AVAILABLE, IN_USE, RESERVED, ATTACHING, DETACHING)),
    "clone": Transition("copy", (AVAILABLE, IN_USE)),
    "transfer": Transition("transfer", (AVAILABLE,), then=AWAITING_TRANSFER),
}


def check(volume: Volume, action: str) -> Transition:
    """The transition of the action. Refuses (400) it if the volume's status does not allow it."""
    transition = TRANSITIONS[action]
    if volume.status not in transition.allowed:
        raise BadRequest(
            f"Invalid volume: Volume {volume.id} status must be {' or '.join(transition.allowed)}"
            f" to {transition.verb}, but the current status is: {volume.status}."
        )
    return transition


def of_attachments(statuses: list[str]) -> str:
    """The status of a volume whose attachments have these statuses."""
    if "attached" in statuses:
        return IN_USE
    if "attaching" in statuses:
        return ATTACHING
    return RESERVED if "reserved" in statuses else AVAILABLE


def draw() -> str:
    """The transitions as a mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for action, transition in TRANSITIONS.items():
        for status in transition.allowed:
            lines += [f"    {start} --> {end}: {words}" for start, end, words in _arrows(action, status, transition)]
    return "\n".join(dict.fromkeys(lines))


def _arrows(action: str, status: str, transition: Transition) -> list[tuple[str, str, str]]:
    at_rest = status if status in ATTACHMENT_STATES else AVAILABLE

    def named(target: str) -> str:
        return {NEW: "[*]", DELETED: "[*]", AT_REST: at_rest}.get(target, target)

    if transition.meanwhile is None:
        target = transition.then
        return [(status, target, action)] if target and target != AT_REST else []
    arrows = [(named(status), transition.meanwhile, action)]
    if transition.then:
        arrows.append((transition.meanwhile, named(transition.then), "done"))
    if transition.failed:
        arrows.append((transition.meanwhile, named(transition.failed), "failed"))
    return arrows
