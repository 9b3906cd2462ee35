"""What a host can be asked."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from kilonova.hosts.messages.base import Message
from kilonova.hosts.messages.facts import HostFacts
from kilonova.hosts.messages.guests import Disk, Display, Guest, GuestState, Image, MigrationState, Nic, Transfer
from kilonova.hosts.messages.networks import NetworkPlan


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
    """What the guest is told of itself from now on. `forgetting`: without the password that it has given away."""

    name: str
    metadata: dict[str, str]
    forgetting: bool = False

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
