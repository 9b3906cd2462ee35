"""A model of a server: its API calls, the reasons for which the API refuses a call, and the states that may follow.

The state table (`kilonova.compute.servers.states`) says which call is allowed in which state. `REFUSALS` lists the
reasons that concern single calls. A server is building only while its first operation runs, so the model lacks this
state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kilonova.compute.servers.states import (
    ACTIVE,
    DELETED,
    ERROR,
    HALTED,
    NOSTATE,
    PAUSED,
    RESCUED,
    RESIZED,
    RUNNING,
    SAVED,
    SHELVED,
    SHELVED_OFFLOADED,
    SHUTDOWN,
    SOFT_DELETED,
    STOPPED,
    SUSPENDED,
    TRANSITIONS,
    Transition,
)

Table = Mapping[str, Transition]

SMALL_FLAVOR, LARGE_FLAVOR = "small", "large"
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"
# A resized server has the power state that it had before. In error, it has any.
POWER_BY_STATE = {
    ACTIVE: RUNNING,
    STOPPED: SHUTDOWN,
    PAUSED: HALTED,
    SUSPENDED: SAVED,
    RESCUED: RUNNING,
    SHELVED: SHUTDOWN,
    SHELVED_OFFLOADED: NOSTATE,
    SOFT_DELETED: SHUTDOWN,
    DELETED: NOSTATE,
}


@dataclass(frozen=True)
class Facts:
    """A server and its cloud before a call.

    `ports` and `volumes` are those that the server has, without its root volume. `old_vm_state` and `old_power_state`
    are those before its unconfirmed resize. `may_lack_guest`: an operation of the shelved server may have destroyed its
    guest. `is_in_doubt`: it was in error, and no call since has proved that its guest
    exists. `data_volumes` are two volumes of the user.
    """

    id: str
    vm_state: str
    power_state: int
    host: str | None
    locked: bool
    launched: bool
    is_shelved: bool
    may_lack_guest: bool
    is_in_doubt: bool
    flavor_id: str
    metadata: str
    ports: tuple[str, ...]
    volumes: tuple[str, ...]
    root_volume: str | None
    old_vm_state: str | None
    old_power_state: int | None
    down: str | None
    reclaims: bool
    image: str
    rescue_image: str
    network: str
    data_volumes: tuple[str, str]
    available_volumes: frozenset[str]

    @property
    def host_is_down(self) -> bool:
        return self.host is not None and self.host == self.down

    @property
    def has_odd_guest(self) -> bool:
        """Whether the guest may be missing, or may have another power than the state says."""
        if self.vm_state == RESIZED:
            return self.is_in_doubt or self.power_state not in (RUNNING, SHUTDOWN)
        return self.is_in_doubt or self.power_state != POWER_BY_STATE.get(self.vm_state)


@dataclass(frozen=True)
class Call:
    """An API call. `transition` is its row of the state table; None: every state allows it.

    `commands` are commands of the host that a test lets fail. With `needs_host` a server without a host refuses it.
    """

    transition: str | None
    path: Callable[[Facts], str]
    body: Callable[[Facts], Any]
    method: str = "POST"
    as_: str = "member"
    version: str = "2.96"
    commands: tuple[str, ...] = ()
    needs_host: bool = True


def _action(name: str, *commands: str, body: Any = None, **options: Any) -> Call:
    """A call of `POST /servers/{id}/action`. `body` is a value, or a function of the facts."""
    return Call(
        transition=options.pop("transition", name),
        path=lambda facts: "/action",
        body=lambda facts: {name: body(facts) if callable(body) else body},
        commands=commands,
        **options,
    )


def _other_flavor(facts: Facts) -> dict[str, str]:
    return {"flavorRef": SMALL_FLAVOR if facts.flavor_id == LARGE_FLAVOR else LARGE_FLAVOR}


def _volume(facts: Facts) -> str:
    """The attached data volume, else the first one."""
    return facts.volumes[0] if facts.volumes else facts.data_volumes[0]


def _other_volume(facts: Facts) -> str:
    return facts.data_volumes[_volume(facts) == facts.data_volumes[0]]


def _attachment(volume: Callable[[Facts], str]) -> Callable[[Facts], Any]:
    return lambda facts: {"volumeAttachment": {"volumeId": volume(facts)}}


def _no_body(facts: Facts) -> None:
    return None


CALLS: dict[str, Call] = {
    "os-stop": _action("os-stop", "power_off"),
    "os-start": _action("os-start", "power_on"),
    "reboot SOFT": _action("reboot", "reboot", transition="reboot SOFT", body={"type": "SOFT"}),
    "reboot HARD": _action("reboot", "reboot", transition="reboot HARD", body={"type": "HARD"}),
    "pause": _action("pause", "pause"),
    "unpause": _action("unpause", "unpause"),
    "suspend": _action("suspend", "suspend"),
    "resume": _action("resume", "resume"),
    "rescue": _action("rescue", "power_off", "rescue", version="2.86"),
    "rescue from image": _action(
        "rescue", "power_off", "rescue", body=lambda facts: {"rescue_image_ref": facts.rescue_image}
    ),
    "unrescue": _action("unrescue", "unrescue"),
    "changePassword": _action("changePassword", "set_password", body={"adminPass": "secret"}),
    "trigger_crash_dump": _action("trigger_crash_dump", "crash_dump"),
    "shelve": _action("shelve", "power_off", "snapshot", "destroy"),
    "shelveOffload": _action("shelveOffload", "destroy", as_="project-admin"),
    "unshelve": _action("unshelve", "power_on", "spawn", "look_connector", needs_host=False),
    "resize": _action("resize", "power_off", "park", "receive", "look_connector", body=_other_flavor),
    "migrate": _action("migrate", "power_off", "park", "receive", "look_connector", as_="project-admin"),
    "confirmResize": _action("confirmResize", "discard"),
    "revertResize": _action("revertResize", "power_off", "park", "unpark", "look_connector"),
    "rebuild": _action("rebuild", "power_off", "park", "spawn", body=lambda facts: {"imageRef": facts.image}),
    "rebuild before 2.93": _action(
        "rebuild", "power_off", "park", "spawn", body=lambda facts: {"imageRef": facts.image}, version="2.92"
    ),
    "createImage": _action("createImage", "snapshot", body={"name": "image"}),
    "createBackup": _action("createBackup", "snapshot", body={"name": "b", "backup_type": "daily", "rotation": 1}),
    "os-migrateLive": _action(
        "os-migrateLive",
        *("offer", "expect", "migrate_live", "look_connector"),
        body={"host": None, "block_migration": "auto"},
        as_="project-admin",
    ),
    "evacuate before 2.95": _action(
        "evacuate", "spawn", "look_connector", body={}, as_="project-admin", version="2.94"
    ),
    "evacuate": _action("evacuate", "spawn", "look_connector", body={}, as_="project-admin"),
    "attach_volume": Call(
        transition="attach_volume",
        path=lambda facts: "/os-volume_attachments",
        body=_attachment(_volume),
        commands=("attach_disk", "look_connector"),
        needs_host=False,
    ),
    "detach_volume": Call(
        transition="detach_volume",
        path=lambda facts: f"/os-volume_attachments/{_volume(facts)}",
        body=_no_body,
        method="DELETE",
        commands=("detach_disk",),
        needs_host=False,
    ),
    "detach_volume of root": Call(
        transition="detach_volume",
        path=lambda facts: f"/os-volume_attachments/{facts.root_volume or UNKNOWN_ID}",
        body=_no_body,
        method="DELETE",
        needs_host=False,
    ),
    "swap_volume": Call(
        transition="swap_volume",
        path=lambda facts: f"/os-volume_attachments/{_volume(facts)}",
        body=_attachment(_other_volume),
        method="PUT",
        as_="project-admin",
        commands=("swap_disk", "look_connector"),
    ),
    "attach_interface": Call(
        transition="attach_interface",
        path=lambda facts: "/os-interface",
        body=lambda facts: {"interfaceAttachment": {"net_id": facts.network}},
        commands=("attach_nic",),
    ),
    "detach_interface": Call(
        transition="detach_interface",
        path=lambda facts: f"/os-interface/{facts.ports[-1] if facts.ports else UNKNOWN_ID}",
        body=_no_body,
        method="DELETE",
        commands=("detach_nic",),
    ),
    # The share does not exist: these calls show the states only.
    "attach_share": Call(
        transition="attach_share",
        path=lambda facts: "/shares",
        body=lambda facts: {"share": {"share_id": UNKNOWN_ID}},
        version="2.97",
    ),
    "detach_share": Call(
        transition="detach_share",
        path=lambda facts: f"/shares/{UNKNOWN_ID}",
        body=_no_body,
        method="DELETE",
        version="2.97",
    ),
    "metadata": Call(
        transition="metadata",
        path=lambda facts: "/metadata",
        body=lambda facts: {"metadata": {} if "key" in facts.metadata else {"key": "value"}},
        method="PUT",
        commands=("set_metadata",),
        needs_host=False,
    ),
    "tags": Call(transition="tags", path=lambda facts: "/tags/tag", body=_no_body, method="PUT", needs_host=False),
    "lock": _action("lock", transition=None, needs_host=False),
    "unlock": _action("unlock", transition=None, needs_host=False),
    "os-resetState active": _action("os-resetState", body={"state": ACTIVE}, as_="project-admin"),
    "os-resetState error": _action("os-resetState", body={"state": ERROR}, as_="project-admin", needs_host=False),
    "restore": _action("restore", "power_on", "unrescue"),
    "forceDelete": _action("forceDelete", "destroy", "discard", transition=None, needs_host=False),
    "delete": Call(
        transition=None,
        path=lambda facts: "",
        body=_no_body,
        method="DELETE",
        commands=("power_off", "destroy", "discard"),
        needs_host=False,
    ),
}


class Refusal(NamedTuple):
    """A reason to refuse a call: whether it applies, and the status and words of the answer."""

    status: int
    words: str
    applies: Callable[[str, Facts], bool]


_IN_STATE = "Cannot '{verb}' instance {id} while it is in vm_state {vm_state}"


def _of(*names: str, when: Callable[[Facts], Any]) -> Callable[[str, Facts], bool]:
    return lambda name, facts: name in names and bool(when(facts))


# Refusals of an unlocked server that is on a host and in an allowed state, in the order of the API's checks.
REFUSALS = (
    Refusal(409, "Unshelve it", _of("os-resetState active", when=lambda facts: facts.may_lack_guest)),
    Refusal(400, "Cannot rescue a volume-backed instance", _of("rescue", when=lambda facts: facts.root_volume)),
    Refusal(409, _IN_STATE, _of("createImage", when=lambda facts: facts.root_volume and facts.vm_state == PAUSED)),
    Refusal(
        400,
        "Backup is not supported for volume-backed instances.",
        _of("createBackup", when=lambda facts: facts.root_volume),
    ),
    Refusal(
        400,
        "Compute service of {host} is still in use.",
        _of("evacuate", "evacuate before 2.95", when=lambda facts: not facts.host_is_down),
    ),
    Refusal(404, "volume_id not found", _of("detach_volume", "swap_volume", when=lambda facts: not facts.volumes)),
    Refusal(404, "volume_id not found", _of("detach_volume of root", when=lambda facts: not facts.root_volume)),
    Refusal(403, "Cannot detach a root device volume", _of("detach_volume of root", when=lambda facts: True)),
    Refusal(400, "is already attached to instance {id}", _of("attach_volume", when=lambda facts: facts.volumes)),
    Refusal(
        400,
        "status must be 'available'",
        _of("attach_volume", when=lambda facts: _volume(facts) not in facts.available_volumes),
    ),
    Refusal(
        400,
        "Volume must be detached in order to swap.",
        _of("swap_volume", when=lambda facts: _other_volume(facts) not in facts.available_volumes),
    ),
    Refusal(404, "Share {unknown_id} could not be found.", _of("attach_share", when=lambda facts: True)),
    Refusal(404, "Share {unknown_id} is not attached", _of("detach_share", when=lambda facts: True)),
    Refusal(
        404, "Port id {unknown_id} could not be found.", _of("detach_interface", when=lambda facts: not facts.ports)
    ),
)


# Calls that a shelved server in error accepts, and others in error refuse.
_UNSHELVE = frozenset({"unshelve"})
_RESETS = {"os-resetState active": ACTIVE, "os-resetState error": ERROR}


def _is_allowed(name: str, facts: Facts, transition: Transition) -> bool:
    if name in _RESETS and _RESETS[name] not in transition.follows.get(facts.vm_state, ()):
        return False
    if facts.vm_state == ERROR and name not in _RESETS:
        return ERROR in transition.allowed and facts.is_shelved == (name in _UNSHELVE)
    return facts.vm_state in transition.allowed


_ALLOWED_WHEN_LOCKED = frozenset({"lock", "unlock", "createImage", "createBackup", "tags"})


def refusal(name: str, facts: Facts, table: Table) -> tuple[int, str] | None:
    """Status and words of the expected refusal; None if the call must be accepted."""
    call = CALLS[name]
    transition = table[call.transition] if call.transition else None
    words = {"id": facts.id, "host": facts.host, "vm_state": facts.vm_state, "unknown_id": UNKNOWN_ID}
    if facts.vm_state == DELETED:
        return 404, f"Instance {facts.id} could not be found."
    if facts.locked and call.as_ == "member" and name not in _ALLOWED_WHEN_LOCKED:
        return 409, f"Instance {facts.id} is locked"
    if transition and not _is_allowed(name, facts, transition):
        return 409, _IN_STATE.format(verb=transition.verb, **words)
    if call.needs_host and facts.host is None:
        return 409, f"Instance {facts.id} is not ready: it has no host"
    for status, text, applies in REFUSALS:
        if applies(name, facts):
            return status, text.format(verb=transition.verb if transition else "", **words)
    return None


# Accepted calls

# Calls that need another host than the server's own.
_MOVES = frozenset({"resize", "migrate", "os-migrateLive", "unshelve", "revertResize"})
# Transitions that do not change the power state.
_KEEPS_POWER = frozenset(
    {
        *("changePassword", "trigger_crash_dump", "createImage", "createBackup", "os-migrateLive", "metadata", "tags"),
        *("attach_volume", "detach_volume", "swap_volume", "attach_interface", "detach_interface"),
        *("resize", "migrate", "confirmResize", "os-resetState"),
    }
)


def transition_of(name: str, facts: Facts) -> str | None:
    """The row of the state table that an accepted call follows; None if the call keeps the state."""
    if name not in ("delete", "forceDelete"):
        return CALLS[name].transition
    if name == "delete" and facts.reclaims:
        if facts.vm_state == SOFT_DELETED:
            return None
        is_kept = facts.vm_state in TRANSITIONS["soft delete"].allowed and not facts.is_shelved
        if is_kept and facts.launched and facts.host:
            return "soft delete"
    return "delete"


def state_after(name: str, facts: Facts, table: Table) -> tuple[str, int]:
    """vm_state and power_state after the call has succeeded."""
    transition = transition_of(name, facts)
    if transition is None:
        return facts.vm_state, facts.power_state
    follows = table[transition].follows[facts.vm_state]
    if len(follows) == 1:
        state = follows[0]
    elif transition == "os-resetState":
        state = name.split()[1]
    elif transition == "evacuate":
        state = ACTIVE if name == "evacuate before 2.95" else STOPPED
    elif transition == "revertResize":
        state = facts.old_vm_state or "no unconfirmed resize"
    else:
        state = ACTIVE if facts.power_state == RUNNING else STOPPED
    assert state in follows, f"{name} leads to {state}, and the state table says {follows}"
    return state, _power_after(transition, facts, state)


def _power_after(transition: str, facts: Facts, state: str) -> int:
    if transition == "revertResize" and facts.old_power_state is not None:
        return facts.old_power_state
    return facts.power_state if transition in _KEEPS_POWER else POWER_BY_STATE[state]


def states_after_failure(name: str, facts: Facts) -> set[tuple[str, int]]:
    """vm_state and power_state that are allowed after the call's operation has failed."""
    unchanged, transition = (facts.vm_state, facts.power_state), transition_of(name, facts)
    if transition == "delete":
        return {(ERROR, NOSTATE)}
    if transition in ("shelve", "soft delete") and facts.vm_state in (PAUSED, SUSPENDED):
        return {unchanged, (STOPPED, SHUTDOWN)}  # the guest was stopped and has lost its memory
    if transition == "rebuild" and facts.root_volume:
        return {unchanged, (ERROR, NOSTATE)}  # the volume has lost its content
    return {unchanged}


def proves_guest(name: str, facts: Facts) -> bool:
    """Whether the server has a guest with the expected power after the call has succeeded."""
    transition = transition_of(name, facts)
    return transition is not None and transition not in _KEEPS_POWER | {"soft delete"}


def may_fail(name: str, facts: Facts) -> bool:
    """Whether the operation may fail without a failing command."""
    unreachable = facts.down is not None if name in _MOVES else facts.host_is_down
    not_running = name == "trigger_crash_dump" and facts.power_state != RUNNING
    return unreachable or not_running or facts.has_odd_guest
