"""What a guest is, and what its host says of it."""

from __future__ import annotations

from typing import Any, Literal

from kilonova.hosts.messages.base import Message

Power = Literal["running", "shutdown", "paused", "suspended", "crashed"]


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
    # What is known of the image that this disk was made of.
    volume_properties: dict[str, str] = {}
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
    # What it has given away before: a password, encrypted for its key.
    sealed_password: str = ""

    def __repr__(self) -> str:
        # User data and metadata hold people's secrets, and a repr ends in a log sooner or later.
        return f"Guest(id={self.id!r}, name={self.name!r})"

    @property
    def properties(self) -> dict[str, str]:
        """What the image asks of the machine, wherever the guest boots from."""
        return self.image.properties if self.image is not None else self.volume_properties

    def same_machine(self, other: Guest) -> bool:
        """Whether both would be built alike. Name, metadata and ways to a volume may change meanwhile: not asked."""
        return self._hardware() == other._hardware()

    def _hardware(self) -> tuple[object, ...]:
        volumes = sorted(disk.volume_id for disk in self.disks)
        return self.id, self.flavor, self.image, self.volume_properties, self.nics, volumes, self.local_disks


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
    # Which it has encrypted for its key.
    sealed_password: str = ""


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


class Display(Message, frozen=True, kw_only=True):
    """Where a guest's screen is to be had, as seen from the control plane."""

    host: str
    port: int
