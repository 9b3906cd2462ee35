"""What travels between the control plane and an agent: msgpack, read leniently so that releases may differ.

Fields a reader does not know are ignored and new fields have defaults; a verb it does not know is refused
by name.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import msgspec

# 1: the beginning. 2: hosts tell of nested and sharing providers and of when they booted. 3: guests move. 4: volumes.
# 5: networks, consoles, and everything else that only real guests have.
VERSION = 5

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
    tag: str = ""


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
    # What the guest is told of itself, beside the above.
    availability_zone: str = ""
    launch_index: int = 0
    reservation_id: str = ""
    created_at: float = 0.0

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
    # Where other hosts reach this one, by what for: "migration", "disks". Given to them as they are.
    addresses: dict[str, str] = {}
    # Whether it wants to be told of the networks of its guests (ApplyNetwork).
    networked: bool = False
    agent_version: int = VERSION


# What a host is told of its networks


class Firewall(Message, frozen=True, kw_only=True):
    """What a port lets through. An empty protocol is any; so are empty remotes, which are addresses with a prefix.

    For ICMP the ports are its type and code.
    """

    direction: Literal["ingress", "egress"]
    ethertype: Literal["IPv4", "IPv6"]
    protocol: str = ""
    port_min: int | None = None
    port_max: int | None = None
    remotes: list[str] = []
    # In place of remotes: one of the plan's groups. One without members lets nobody through.
    group: str = ""


class WiredPort(Message, frozen=True, kw_only=True):
    """A port of a guest on the host. Unsecured ports are let through whatever they send."""

    id: str
    guest_id: str
    mac: str
    addresses: list[str] = []
    is_up: bool = True
    secured: bool = True
    # Further addresses it may send from, each as (MAC, address with a prefix).
    pairs: list[tuple[str, str]] = []
    rules: list[Firewall] = []
    dhcp_options: dict[str, str] = {}


class WiredSubnet(Message, frozen=True, kw_only=True):
    id: str
    cidr: str
    gateway: str = ""
    dhcp: bool = True
    dns: list[str] = []
    # (destination, next hop)
    routes: list[tuple[str, str]] = []
    # Addresses of it that every host answers for by itself: those of routers, and a gateway that no port has.
    held: list[str] = []
    # How guests get addresses of IPv6: "slaac", "dhcpv6-stateful", "dhcpv6-stateless", or from elsewhere.
    mode: str = ""


class WiredNetwork(Message, frozen=True, kw_only=True):
    """A network with ports on the host, or joined to one that has. `peers`: the addresses of the other such hosts."""

    id: str
    # Its number between hosts; none if it does not leave the host.
    vni: int | None = None
    mtu: int = 1450
    subnets: list[WiredSubnet] = []
    ports: list[WiredPort] = []
    peers: list[str] = []
    # Whether guests may reach the outside by the host's address.
    nat: bool = False
    # (floating address, fixed address) of ports on the host.
    floating: list[tuple[str, str]] = []
    # (cidr, network id) of networks that a router joins to this one.
    routed: list[tuple[str, str]] = []
    # (MAC, address) of ports on other hosts, where a router of this host leads to them.
    neighbours: list[tuple[str, str]] = []


class NetworkPlan(Message, frozen=True, kw_only=True):
    """Everything of networks that the host shall have. Of two plans the one that was `read_at` later counts."""

    read_at: float
    networks: list[WiredNetwork] = []
    # The addresses, each with a prefix, of the members of groups that rules name: once, for they may be many.
    groups: dict[str, list[str]] = {}


class Report(Message, frozen=True, kw_only=True):
    """What a host says by itself: regularly, and at once when a guest's power changes.

    `boot` is another one at each start of the agent; the next report comes after `seconds` at the latest.
    """

    host: str
    boot: str = ""
    seconds: float = 0.0
    guests: list[GuestState] = []


class Display(Message, frozen=True, kw_only=True):
    """Where a guest's screen is to be had, as seen from the control plane."""

    host: str
    port: int


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
    """`grace`: for how many seconds the guest's system may shut down by itself before the power is cut."""

    grace: float = 0.0
    answer: ClassVar[Any] = GuestState


class Reboot(GuestVerb, frozen=True, kw_only=True, tag="reboot"):
    hard: bool = False
    answer: ClassVar[Any] = GuestState


class Pause(GuestVerb, frozen=True, kw_only=True, tag="pause"):
    """Stop the guest's processors; everything stays in memory."""

    answer: ClassVar[Any] = GuestState


class Unpause(GuestVerb, frozen=True, kw_only=True, tag="unpause"):
    answer: ClassVar[Any] = GuestState


class Suspend(GuestVerb, frozen=True, kw_only=True, tag="suspend"):
    """Write the guest's memory to a disk of the host and stop it."""

    answer: ClassVar[Any] = GuestState


class Resume(GuestVerb, frozen=True, kw_only=True, tag="resume"):
    """Have a suspended guest go on where it was; also after the host has booted."""

    answer: ClassVar[Any] = GuestState


class Rescue(GuestVerb, frozen=True, kw_only=True, tag="rescue"):
    """Have the guest run from another image, with its own root disk beside. No image: the one it was built from."""

    image: Image | None = None
    data: Transfer | None = None
    password: str = ""
    answer: ClassVar[Any] = GuestState

    def __repr__(self) -> str:
        return f"Rescue(guest_id={self.guest_id!r})"


class Unrescue(GuestVerb, frozen=True, kw_only=True, tag="unrescue"):
    """Have the guest run from its own disk again."""

    answer: ClassVar[Any] = GuestState


class SetPassword(GuestVerb, frozen=True, kw_only=True, tag="set_password"):
    """Through the agent in the guest; "no guest agent" where there is none."""

    user: str = ""
    password: str

    def __repr__(self) -> str:
        return f"SetPassword(guest_id={self.guest_id!r})"


class CrashDump(GuestVerb, frozen=True, kw_only=True, tag="crash_dump"):
    """Send the guest an interrupt at which its system writes a dump of itself."""


class AttachNic(GuestVerb, frozen=True, kw_only=True, tag="attach_nic"):
    nic: Nic
    answer: ClassVar[Any] = GuestState


class DetachNic(GuestVerb, frozen=True, kw_only=True, tag="detach_nic"):
    port_id: str
    answer: ClassVar[Any] = GuestState | None


class SetMetadata(GuestVerb, frozen=True, kw_only=True, tag="set_metadata"):
    """What the guest is told of itself from now on."""

    name: str
    metadata: dict[str, str]

    def __repr__(self) -> str:
        return f"SetMetadata(guest_id={self.guest_id!r})"


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
    """Build the guest with the disks that the source, perhaps this very host, keeps in the slot.

    `reach`: where the source is reached, as it says itself.
    """

    guest: Guest
    source: str
    slot: str
    start: bool
    reach: dict[str, str] = {}
    answer: ClassVar[Any] = GuestState

    @property
    def guest_id(self) -> str:
        return self.guest.id


class Offer(GuestVerb, frozen=True, kw_only=True, tag="offer"):
    """Look whether the running guest could go to the destination; what the destination has to know to expect it.

    `reach`: where the destination is reached, as it says itself. What cannot work is refused here.
    """

    destination: str
    slot: str
    block: bool | None = None
    reach: dict[str, str] = {}
    answer: ClassVar[Any] = dict[str, Any]


class Expect(Verb, frozen=True, kw_only=True, tag="expect"):
    """Make ready for a running guest of the source to come into the slot.

    `block`: whether its disks come too; None leaves it to the hosts. What cannot work is refused here.
    """

    guest: Guest
    source: str
    slot: str
    block: bool | None = None
    # What the source has answered to Offer, and where it is reached.
    offer: dict[str, Any] = {}
    reach: dict[str, str] = {}
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
    # Where the destination is reached.
    reach: dict[str, str] = {}


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


class LookConsole(Verb, frozen=True, kw_only=True, tag="look_console"):
    """The end of what the guest has written to its serial console: so many lines, None for all that is kept."""

    guest_id: str
    lines: int | None = None
    answer: ClassVar[Any] = bytes
    changes: ClassVar[bool] = False


class LookDisplay(Verb, frozen=True, kw_only=True, tag="look_display"):
    guest_id: str
    kind: str
    answer: ClassVar[Any] = Display
    changes: ClassVar[bool] = False


class LookDiagnostics(Verb, frozen=True, kw_only=True, tag="look_diagnostics"):
    """The newest form of the API's diagnostics."""

    guest_id: str
    answer: ClassVar[Any] = dict[str, Any]
    changes: ClassVar[bool] = False


class ApplyNetwork(Verb, frozen=True, kw_only=True, tag="apply_network"):
    """Have the host's networks as the plan says, unless a newer one came before."""

    plan: NetworkPlan
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
    | Pause
    | Unpause
    | Suspend
    | Resume
    | Rescue
    | Unrescue
    | SetPassword
    | CrashDump
    | AttachNic
    | DetachNic
    | SetMetadata
    | Park
    | Unpark
    | Discard
    | Receive
    | Offer
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
Read = (
    ListGuests | LookMigration | LookConsole | LookDisplay | LookDiagnostics | LookConnector | ApplyNetwork | Describe
)
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
    "no guest agent",  # nobody in the guest does what is asked of it
    "not running",  # only a running guest could
    "no display",  # of the type that was asked for
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
_reports = msgspec.msgpack.Decoder(Report)
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


def decode_report(data: bytes) -> Report:
    """Raises msgspec.DecodeError."""
    return _reports.decode(data)


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
