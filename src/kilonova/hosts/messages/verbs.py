"""The verbs of commands to hosts."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, get_args

from kilonova.hosts.messages.base import Message
from kilonova.hosts.messages.facts import HostFacts
from kilonova.hosts.messages.guests import (
    Disk,
    Guest,
    GuestState,
    Image,
    MigrationState,
    MoveTicket,
    Nic,
    Share,
    Transfer,
)
from kilonova.hosts.messages.networks import NetworkPlan

Answer = TypeVar("Answer", covariant=True)


class Verb(Message, Generic[Answer], frozen=True, kw_only=True):
    """`Answer` is the type of the answer. Agents journal verbs that change a guest, never reads."""

    changes: ClassVar[bool] = True
    # The driver's method, if it is not the tag: the tag is on the wire and in journals, and does not change.
    method: ClassVar[str] = ""

    @classmethod
    def tag(cls) -> str:
        return str(cls.__struct_config__.tag)


class GuestVerb(Verb[Answer], Generic[Answer], frozen=True, kw_only=True):
    guest_id: str


class NewGuestVerb(Verb[Answer], Generic[Answer], frozen=True, kw_only=True):
    guest: Guest

    @property
    def guest_id(self) -> str:
        return self.guest.id


class Query(Verb[Answer], Generic[Answer], frozen=True, kw_only=True):
    changes: ClassVar[bool] = False


class GuestQuery(Query[Answer], Generic[Answer], frozen=True, kw_only=True):
    guest_id: str


class Spawn(NewGuestVerb[GuestState], frozen=True, kw_only=True, tag="spawn"):
    """Build a guest. `data` is its image, for drivers that read it.

    `disk_of` names a failed host: if both hosts share storage, the guest keeps the disk that it had there.
    """

    start: bool = True
    data: Transfer | None = None
    disk_of: str = ""


class Destroy(GuestVerb[None], frozen=True, kw_only=True, tag="destroy"):
    pass


class PowerOn(GuestVerb[GuestState], frozen=True, kw_only=True, tag="power_on"):
    pass


class PowerOff(GuestVerb[GuestState], frozen=True, kw_only=True, tag="power_off"):
    """`grace`: how many seconds the guest has to shut down cleanly before the power is cut."""

    grace: float = 0.0


class Reboot(GuestVerb[GuestState], frozen=True, kw_only=True, tag="reboot"):
    hard: bool = False


class Pause(GuestVerb[GuestState], frozen=True, kw_only=True, tag="pause"):
    """Stop the guest's CPUs; its memory stays."""


class Unpause(GuestVerb[GuestState], frozen=True, kw_only=True, tag="unpause"):
    pass


class Suspend(GuestVerb[GuestState], frozen=True, kw_only=True, tag="suspend"):
    """Write the guest's memory to a disk of the host and stop it."""


class Resume(GuestVerb[GuestState], frozen=True, kw_only=True, tag="resume"):
    """Continue a suspended guest, also after a boot of the host."""


class Rescue(GuestVerb[GuestState], frozen=True, kw_only=True, tag="rescue"):
    """Boot the guest from a rescue image, with its root disk attached. Default: the image that it was built from."""

    image: Image | None = None
    data: Transfer | None = None
    password: str = ""

    def __repr__(self) -> str:
        return f"Rescue(guest_id={self.guest_id!r})"


class Unrescue(GuestVerb[GuestState], frozen=True, kw_only=True, tag="unrescue"):
    """Boot the guest from its own disk again."""


class SetPassword(GuestVerb[None], frozen=True, kw_only=True, tag="set_password"):
    """Set a user's password by the guest agent. Fails with "no guest agent" where none runs."""

    user: str = ""
    password: str

    def __repr__(self) -> str:
        return f"SetPassword(guest_id={self.guest_id!r})"


class CrashDump(GuestVerb[None], frozen=True, kw_only=True, tag="crash_dump"):
    """Send the guest an NMI, at which its kernel writes a crash dump."""


class AttachNic(GuestVerb[GuestState], frozen=True, kw_only=True, tag="attach_nic"):
    nic: Nic


class DetachNic(GuestVerb[GuestState | None], frozen=True, kw_only=True, tag="detach_nic"):
    port_id: str


class SetMetadata(GuestVerb[None], frozen=True, kw_only=True, tag="set_metadata"):
    """Replace name and metadata in the guest's metadata service. `forgetting`: clear its published admin password."""

    name: str
    metadata: dict[str, str]
    forgetting: bool = False

    def __repr__(self) -> str:
        return f"SetMetadata(guest_id={self.guest_id!r})"


# Moves. A slot of a host holds a guest before a move, or an incoming one. Its name is the id of the operation.


class Park(GuestVerb[GuestState], frozen=True, kw_only=True, tag="park"):
    """Move the stopped guest with its disks into the slot. `ticket`: of the host that will receive them."""

    slot: str
    ticket: MoveTicket | None = None


class Unpark(GuestVerb[GuestState], frozen=True, kw_only=True, tag="unpark"):
    """Restore the guest from the slot, with these volumes; None: the volumes that it had."""

    slot: str
    start: bool
    disks: list[Disk] | None = None


class Discard(GuestVerb[None], frozen=True, kw_only=True, tag="discard"):
    """Delete the slot. The guest itself stays."""

    slot: str


class Receive(NewGuestVerb[GuestState], frozen=True, kw_only=True, tag="receive"):
    """Build the guest with the disks in the slot of the source, which may be the same host.

    `reach`: the source's `HostFacts.addresses`.
    """

    source: str
    slot: str
    start: bool
    reach: dict[str, str] = {}
    ticket: MoveTicket | None = None


class CheckMigrationSource(GuestVerb[dict[str, object]], frozen=True, kw_only=True, tag="offer"):
    """Check at the source that the guest can be live-migrated. Answers with data for PrepareMigration.

    `reach`: the destination's `HostFacts.addresses`.
    """

    method: ClassVar[str] = "check_migration_source"
    destination: str
    slot: str
    reach: dict[str, str] = {}
    ticket: MoveTicket | None = None


class PrepareMigration(NewGuestVerb[None], frozen=True, kw_only=True, tag="expect"):
    """Check at the destination that the guest can be live-migrated, and prepare the slot.

    `block`: whether its disks are copied; None lets the hosts decide.
    """

    method: ClassVar[str] = "prepare_migration"
    source: str
    slot: str
    block: bool | None = None
    # The source's answer to Offer, and its `HostFacts.addresses`.
    offer: dict[str, object] = {}
    reach: dict[str, str] = {}
    ticket: MoveTicket | None = None


class MigrateLive(GuestVerb[None], frozen=True, kw_only=True, tag="migrate_live"):
    """Live-migrate the guest into the slot at the destination. Not limited in time.

    A guest that runs at the destination and not here has been migrated: a success.
    """

    destination: str
    slot: str
    block: bool | None = None
    # The destination's `HostFacts.addresses`.
    reach: dict[str, str] = {}


class StopMigration(GuestVerb[None], frozen=True, kw_only=True, tag="stop_migration"):
    """Abort a live migration: the guest stays here. Interrupts MigrateLive."""


class ForceCompleteMigration(GuestVerb[None], frozen=True, kw_only=True, tag="hurry_migration"):
    """Force a live migration to complete, at the cost of a pause. Runs beside MigrateLive."""

    method: ClassVar[str] = "force_complete_migration"


class AttachDisk(GuestVerb[GuestState], frozen=True, kw_only=True, tag="attach_disk"):
    """Attach a volume to the guest, running or not."""

    disk: Disk


class DetachDisk(GuestVerb[GuestState | None], frozen=True, kw_only=True, tag="detach_disk"):
    """Detach a volume from the guest. All its writes are on the volume afterwards."""

    volume_id: str


class SwapDisk(GuestVerb[GuestState], frozen=True, kw_only=True, tag="swap_disk"):
    """Copy a volume of the guest to another one, and replace it in the guest."""

    volume_id: str
    disk: Disk


class GrowDisk(GuestVerb[GuestState], frozen=True, kw_only=True, tag="grow_disk"):
    """Show the guest the new size of an extended volume."""

    volume_id: str
    size_gb: int


class SetShares(GuestVerb[GuestState], frozen=True, kw_only=True, tag="set_shares"):
    """Replace the file shares of the stopped guest. The host mounts them when the guest starts.

    A host that cannot reach a share refuses it.
    """

    shares: list[Share]


class Snapshot(GuestVerb[None], frozen=True, kw_only=True, tag="snapshot"):
    """Upload the guest's root disk as an image."""

    data: Transfer


class GetMigration(GuestQuery[MigrationState | None], frozen=True, kw_only=True, tag="look_migration"):
    """The progress of the guest's live migration at the source; None if there is none."""

    method: ClassVar[str] = "get_migration"


class GetConsoleLog(GuestQuery[bytes], frozen=True, kw_only=True, tag="look_console"):
    """The last lines of the guest's console log; None for the whole log."""

    method: ClassVar[str] = "get_console_log"
    lines: int | None = None


class CheckDisplay(GuestQuery[None], frozen=True, kw_only=True, tag="check_display"):
    """Refused if the guest has no display of this kind."""

    kind: str


class OpenDisplay(GuestQuery[str], frozen=True, kw_only=True, tag="open_display"):
    """Connect to a display of the guest. The answer is the id of the session."""

    kind: str


class ReadDisplay(Query[bytes | None], frozen=True, kw_only=True, tag="read_display"):
    """Wait for data of the display. No bytes: there were none for a while. None: the session has ended.

    Must not be sent again if the answer was lost, because the data is lost too.
    """

    session_id: str


class WriteDisplay(Query[None], frozen=True, kw_only=True, tag="write_display"):
    session_id: str
    data: bytes


class CloseDisplay(Query[None], frozen=True, kw_only=True, tag="close_display"):
    session_id: str


class GetDiagnostics(GuestQuery[dict[str, object]], frozen=True, kw_only=True, tag="look_diagnostics"):
    """The guest's diagnostics, in the API's newest format."""

    method: ClassVar[str] = "get_diagnostics"


class ApplyNetwork(Query[None], frozen=True, kw_only=True, tag="apply_network"):
    """Configure the host's networks by the plan, unless the host has a newer one."""

    plan: NetworkPlan


class GetConnector(Query[dict[str, object]], frozen=True, kw_only=True, tag="look_connector"):
    """The host's connector properties for the volume service."""

    method: ClassVar[str] = "get_connector"


class ListGuests(Query[list[GuestState]], frozen=True, kw_only=True, tag="list_guests"):
    pass


class Describe(Query[HostFacts], frozen=True, kw_only=True, tag="describe"):
    pass


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
    | CheckMigrationSource
    | PrepareMigration
    | MigrateLive
    | StopMigration
    | ForceCompleteMigration
    | Snapshot
    | AttachDisk
    | DetachDisk
    | SwapDisk
    | GrowDisk
    | SetShares
)
Read = (
    ListGuests
    | GetMigration
    | GetConsoleLog
    | CheckDisplay
    | OpenDisplay
    | ReadDisplay
    | WriteDisplay
    | CloseDisplay
    | GetDiagnostics
    | GetConnector
    | ApplyNetwork
    | Describe
)
VERBS: dict[str, type[Verb[object]]] = {verb.tag(): verb for verb in (*get_args(Change), *get_args(Read))}


def answer_type(verb: type[Verb[object]]) -> Any:
    """The answer that the class of the verb declares."""
    return get_args(vars(verb)["__orig_bases__"][0])[0]
