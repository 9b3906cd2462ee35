"""What travels between the control plane and an agent: msgpack, read leniently so that releases may differ.

Fields a reader does not know are ignored and new fields have defaults; a verb it does not know is refused
by name.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

# 1: the beginning. 2: hosts tell of nested and sharing providers and of when they booted.
VERSION = 2

Power = Literal["running", "shutdown", "paused", "suspended", "crashed"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Every struct on the wire."""


# What a guest is


class Flavor(Message, frozen=True, kw_only=True):
    name: str = ""
    vcpus: int
    ram_mb: int
    disk_gb: int
    ephemeral_gb: int = 0
    swap_mb: int = 0
    extra_specs: dict[str, str] = {}


class Image(Message, frozen=True, kw_only=True):
    id: str
    name: str = ""
    disk_format: str = "raw"
    container_format: str = "bare"
    properties: dict[str, str] = {}


class Nic(Message, frozen=True, kw_only=True):
    port_id: str
    mac: str
    network_id: str = ""
    addresses: list[str] = []


class Key(Message, frozen=True, kw_only=True):
    name: str
    public_key: str
    type: str = "ssh"


class Guest(Message, frozen=True, kw_only=True):
    """Everything a hypervisor needs to build one guest. `user_data` is the decoded bytes."""

    id: str
    name: str
    hostname: str = ""
    project_id: str
    user_id: str
    flavor: Flavor
    image: Image | None = None
    nics: list[Nic] = []
    key: Key | None = None
    config_drive: bool = False
    metadata: dict[str, str] = {}
    user_data: bytes | None = None

    def __repr__(self) -> str:
        # User data and metadata hold people's secrets, and a repr ends in a log sooner or later.
        return f"Guest(id={self.id!r}, name={self.name!r})"

    def same_machine(self, other: Guest) -> bool:
        """Whether both would be built alike. Name and metadata may change meanwhile: not asked."""
        return self._hardware() == other._hardware()

    def _hardware(self) -> tuple[object, ...]:
        return self.id, self.flavor, self.image, self.nics


# What a host answers


class GuestState(Message, frozen=True, kw_only=True):
    id: str
    name: str
    power: Power
    vcpus: int
    ram_mb: int
    disk_gb: int
    created_at: float = 0.0
    boots: int = 0


class Inventory(Message, frozen=True, kw_only=True):
    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int
    step_size: int = 1
    allocation_ratio: float = 1.0


class NestedProvider(Message, frozen=True, kw_only=True):
    """A part of the host that gives resources of its own: a NUMA cell, a GPU.

    Placement calls it by the hypervisor's name, an underscore and this name. `parent` is the name of another nested
    provider that stands before it in the list; without one it is the host itself.
    """

    name: str
    parent: str | None = None
    inventory: dict[str, Inventory] = {}
    traits: list[str] = []


class SharingProvider(Message, frozen=True, kw_only=True):
    """What several hosts use, each of which tells of it by the same name and the same aggregate."""

    name: str
    aggregate: str
    inventory: dict[str, Inventory] = {}
    traits: list[str] = []


class HostFacts(Message, frozen=True, kw_only=True):
    """A host. The ratios in inventories are its wishes, which aggregates and operators may overrule.

    `booted_at` is in seconds since the epoch, and nothing from agents that do not tell.
    """

    host: str
    hypervisor_hostname: str
    hypervisor_type: str
    hypervisor_version: int
    host_ip: str
    cpu_info: dict[str, Any] = {}
    inventory: dict[str, Inventory] = {}
    traits: list[str] = []
    nested: list[NestedProvider] = []
    sharing: list[SharingProvider] = []
    booted_at: float | None = None
    agent_version: int = VERSION


# What a host can be asked


class Verb(Message, frozen=True, kw_only=True):
    """A verb names the type of its answer. One that changes a guest is journalled, a read never is."""

    answer: ClassVar[Any] = None
    changes: ClassVar[bool] = True


class GuestVerb(Verb, frozen=True, kw_only=True):
    guest_id: str


class Spawn(Verb, frozen=True, kw_only=True, tag="spawn"):
    guest: Guest
    answer: ClassVar[Any] = GuestState

    @property
    def guest_id(self) -> str:
        return self.guest.id


class Destroy(GuestVerb, frozen=True, kw_only=True, tag="destroy"):
    pass


class PowerOn(GuestVerb, frozen=True, kw_only=True, tag="power_on"):
    answer: ClassVar[Any] = GuestState


class PowerOff(GuestVerb, frozen=True, kw_only=True, tag="power_off"):
    answer: ClassVar[Any] = GuestState


class Reboot(GuestVerb, frozen=True, kw_only=True, tag="reboot"):
    hard: bool = False
    answer: ClassVar[Any] = GuestState


class ListGuests(Verb, frozen=True, kw_only=True, tag="list_guests"):
    answer: ClassVar[Any] = list[GuestState]
    changes: ClassVar[bool] = False


class Describe(Verb, frozen=True, kw_only=True, tag="describe"):
    answer: ClassVar[Any] = HostFacts
    changes: ClassVar[bool] = False


Change = Spawn | Destroy | PowerOn | PowerOff | Reboot
Read = ListGuests | Describe
VERBS: dict[str, type[Verb]] = {
    verb.__struct_config__.tag: verb  # type: ignore[misc]
    for verb in (Spawn, Destroy, PowerOn, PowerOff, Reboot, ListGuests, Describe)
}


class Command(Message, frozen=True, kw_only=True):
    """One thing asked of one host. A change says for which operation, step, round and lease epoch."""

    version: int = VERSION
    host: str
    operation: str = ""
    step: str = ""
    round: int = 0
    epoch: int = 0
    verb: Change | Read


ErrorKind = Literal[
    "driver",  # the hypervisor said no
    "missing guest",
    "guest differs",  # a guest of that id is there, built otherwise
    "interrupted",  # a destroy of the same guest came in between
    "stale epoch",
    "wrong host",
    "unsupported",  # a verb of another release
    "malformed",
    "internal",
]


class HostError(Message, frozen=True, kw_only=True):
    # Any text, not ErrorKind: an older control plane must be able to read a newer agent's kinds.
    kind: str
    message: str
    passing: bool = False


class Reply(Message, frozen=True, kw_only=True):
    """`result` stays encoded here; the caller decodes it as the type its verb promises."""

    version: int = VERSION
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    error: HostError | None = None


class Unreadable(Exception):
    """Bytes that are no command of this release; `error` says why."""

    def __init__(self, error: HostError) -> None:
        super().__init__(error.message)
        self.error = error


_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_replies = msgspec.msgpack.Decoder(Reply)
_guests = msgspec.msgpack.Decoder(Guest)
_answers: dict[type[Verb], msgspec.msgpack.Decoder[Any]] = {
    verb: msgspec.msgpack.Decoder(verb.answer) for verb in VERBS.values()
}


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_command(data: bytes) -> Command:
    """Raises Unreadable."""
    try:
        return _commands.decode(data)
    except msgspec.DecodeError as trouble:
        raise Unreadable(_why_unreadable(data, trouble)) from None


def decode_guest(data: bytes) -> Guest:
    return _guests.decode(data)


def decode_reply(data: bytes) -> Reply:
    """Raises msgspec.DecodeError."""
    return _replies.decode(data)


def decode_answer(verb: Verb, reply: Reply) -> Any:
    """Raises msgspec.DecodeError."""
    return _answers[type(verb)].decode(reply.result)


def success(result: Any) -> Reply:
    return Reply(ok=True, result=msgspec.Raw(_encoder.encode(result)))


def failure(kind: ErrorKind, message: str, *, passing: bool = False) -> Reply:
    return Reply(ok=False, error=HostError(kind=kind, message=message, passing=passing))


def _why_unreadable(data: bytes, trouble: Exception) -> HostError:
    """Tells a verb of another release from rubbish."""
    try:
        loose = msgspec.msgpack.decode(data)
        verb, version = str(loose["verb"]["type"]), loose.get("version")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return HostError(kind="malformed", message=f"not a command: {trouble}")
    if verb in VERBS:
        return HostError(kind="malformed", message=f"malformed {verb}: {trouble}")
    message = f"unknown verb {verb!r} of protocol version {version}; this agent speaks version {VERSION}"
    return HostError(kind="unsupported", message=message)
