"""What travels between the control plane and an agent: msgpack, read leniently so that releases may differ.

Fields a reader does not know are ignored and new fields have defaults; a verb it does not know is refused
by name.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec

# 1: the beginning. 2: hosts tell of nested and sharing providers and of when they booted. 3: guests move. 4: volumes.
VERSION = 4

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


class Disk(Message, frozen=True, kw_only=True):
    """A volume in a guest. `connection` is how the host reaches it, as the volume service says it."""

    volume_id: str
    connection: dict[str, Any] = {}
    device: str = ""
    boot_index: int | None = None
    bus: str = ""
    type: str = "disk"
    tag: str = ""
    read_only: bool = False
    # Whether other guests may have it too.
    shared: bool = False

    def __repr__(self) -> str:
        # A connection may hold credentials of the storage.
        return f"Disk(volume_id={self.volume_id!r}, device={self.device!r})"


class LocalDisk(Message, frozen=True, kw_only=True):
    """An empty disk that lives and dies with the guest; the guest's own swap where `format` says so."""

    size_mb: int
    device: str = ""
    format: str = ""
    tag: str = ""


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
    # Without an image the guest boots from the disk with the boot index 0.
    disks: list[Disk] = []
    # None: what the flavor says of ephemeral disks and swap.
    local_disks: list[LocalDisk] | None = None
    key: Key | None = None
    config_drive: bool = False
    metadata: dict[str, str] = {}
    user_data: bytes | None = None

    def __repr__(self) -> str:
        # User data and metadata hold people's secrets, and a repr ends in a log sooner or later.
        return f"Guest(id={self.id!r}, name={self.name!r})"

    def same_machine(self, other: Guest) -> bool:
        """Whether both would be built alike. Name, metadata and ways to a volume may change meanwhile: not asked."""
        return self._hardware() == other._hardware()

    def _hardware(self) -> tuple[object, ...]:
        volumes = sorted(disk.volume_id for disk in self.disks)
        return self.id, self.flavor, self.image, self.nics, volumes, self.local_disks


# What a host answers


class GuestState(Message, frozen=True, kw_only=True):
    """A guest, or with `slot` what a host keeps of one beside it. `disk` tells one disk's content from another's."""

    id: str
    name: str
    power: Power
    vcpus: int
    ram_mb: int
    disk_gb: int
    created_at: float = 0.0
    boots: int = 0
    disk: str = ""
    slot: str = ""
    # The ids of its volumes.
    volumes: list[str] = []


class MigrationState(Message, frozen=True, kw_only=True):
    """How far a live migration is. Amounts are in bytes."""

    memory_total: int = 0
    memory_processed: int = 0
    disk_total: int = 0
    disk_processed: int = 0

    @property
    def percent(self) -> int:
        total = self.memory_total + self.disk_total
        return 100 * (self.memory_processed + self.disk_processed) // total if total else 0


class Transfer(Message, frozen=True, kw_only=True):
    """Where the data of an image is read or written, and the token for it.

    `url` is a path below the image service, whose place the host knows itself: tokens go nowhere else.
    """

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Transfer(url={self.url!r})"


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
    """Build a guest. `data` is where its image is read from, for drivers that need it.

    With `disk_of`, a host that failed, the guest goes on with the disk it had there if both hosts share storage.
    """

    guest: Guest
    start: bool = True
    data: Transfer | None = None
    disk_of: str = ""
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


# Moves. What a host keeps of a guest beside the guest itself lies in a slot, named by the operation that put it there:
# the guest as it was before a move, or the one that is being received.


class Park(GuestVerb, frozen=True, kw_only=True, tag="park"):
    """Put the guest, which stands still, aside into the slot, with its disks."""

    slot: str
    answer: ClassVar[Any] = GuestState


class Unpark(GuestVerb, frozen=True, kw_only=True, tag="unpark"):
    """Take the guest out of the slot again, with these volumes; None: those it had."""

    slot: str
    start: bool
    disks: list[Disk] | None = None
    answer: ClassVar[Any] = GuestState


class Discard(GuestVerb, frozen=True, kw_only=True, tag="discard"):
    """Remove what is in the slot, and only that."""

    slot: str


class Receive(Verb, frozen=True, kw_only=True, tag="receive"):
    """Build the guest with the disks that the source, perhaps this very host, keeps in the slot."""

    guest: Guest
    source: str
    slot: str
    start: bool
    answer: ClassVar[Any] = GuestState

    @property
    def guest_id(self) -> str:
        return self.guest.id


class Expect(Verb, frozen=True, kw_only=True, tag="expect"):
    """Make ready for a running guest of the source to come into the slot.

    `block`: whether its disks come too; None leaves it to the hosts. What cannot work is refused here.
    """

    guest: Guest
    source: str
    slot: str
    block: bool | None = None
    answer: ClassVar[Any] = None

    @property
    def guest_id(self) -> str:
        return self.guest.id


class MigrateLive(GuestVerb, frozen=True, kw_only=True, tag="migrate_live"):
    """Move the running guest to the slot at the destination, where it then is the guest, and here no more.

    Takes as long as it takes. A guest that is not here but runs at the destination has been moved: a success.
    """

    destination: str
    slot: str
    block: bool | None = None


class StopMigration(GuestVerb, frozen=True, kw_only=True, tag="stop_migration"):
    """Abort a live migration under way: the guest stays here. Interrupts MigrateLive."""


class HurryMigration(GuestVerb, frozen=True, kw_only=True, tag="hurry_migration"):
    """Make a live migration end now, at the cost of a pause. Runs beside MigrateLive."""


class AttachDisk(GuestVerb, frozen=True, kw_only=True, tag="attach_disk"):
    """Give the guest, running or not, a volume."""

    disk: Disk
    answer: ClassVar[Any] = GuestState


class DetachDisk(GuestVerb, frozen=True, kw_only=True, tag="detach_disk"):
    """Take a volume from the guest; what was written to it is there when this has succeeded."""

    volume_id: str
    answer: ClassVar[Any] = GuestState | None


class SwapDisk(GuestVerb, frozen=True, kw_only=True, tag="swap_disk"):
    """Copy what is on a volume of the guest to another one, and give the guest that instead."""

    volume_id: str
    disk: Disk
    answer: ClassVar[Any] = GuestState


class GrowDisk(GuestVerb, frozen=True, kw_only=True, tag="grow_disk"):
    """Let the guest see that a volume of its has grown."""

    volume_id: str
    size_gb: int
    answer: ClassVar[Any] = GuestState


class Snapshot(GuestVerb, frozen=True, kw_only=True, tag="snapshot"):
    """Write the guest's root disk as an image."""

    data: Transfer


class LookMigration(Verb, frozen=True, kw_only=True, tag="look_migration"):
    """How far the live migration of the guest away from here is; None if there is none."""

    guest_id: str
    answer: ClassVar[Any] = MigrationState | None
    changes: ClassVar[bool] = False


class LookConnector(Verb, frozen=True, kw_only=True, tag="look_connector"):
    """What the volume service has to know of the host to connect volumes to it."""

    answer: ClassVar[Any] = dict[str, Any]
    changes: ClassVar[bool] = False


class ListGuests(Verb, frozen=True, kw_only=True, tag="list_guests"):
    answer: ClassVar[Any] = list[GuestState]
    changes: ClassVar[bool] = False


class Describe(Verb, frozen=True, kw_only=True, tag="describe"):
    answer: ClassVar[Any] = HostFacts
    changes: ClassVar[bool] = False


Change = (
    Spawn
    | Destroy
    | PowerOn
    | PowerOff
    | Reboot
    | Park
    | Unpark
    | Discard
    | Receive
    | Expect
    | MigrateLive
    | StopMigration
    | HurryMigration
    | Snapshot
    | AttachDisk
    | DetachDisk
    | SwapDisk
    | GrowDisk
)
Read = ListGuests | LookMigration | LookConnector | Describe
VERBS: dict[str, type[Verb]] = {verb.__struct_config__.tag: verb for verb in (*get_args(Change), *get_args(Read))}


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
    "interrupted",  # a destroy of the same guest, or a stop of its migration, came in between
    "no such slot",
    "missing disk",
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
