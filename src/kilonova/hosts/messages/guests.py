"""Descriptions of guests, and their state on a host."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import structs

from kilonova.hosts.messages.base import Message
from kilonova.hosts.messages.networks import WiredSubnet

Power = Literal["running", "shutdown", "paused", "suspended", "crashed"]
ShareKind = Literal["directory", "nfs"]


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
    # Of the data, such as `sha512:…`. Hosts refuse other data. Empty if it is unknown.
    hash: str = ""


class Nic(Message, frozen=True, kw_only=True):
    """`vif_type`, `vif_details` and `vnic_type` say how a real Neutron has bound the port to the host.

    They are empty for networks of the built-in service, which the host builds itself.
    """

    port_id: str
    mac: str
    network_id: str = ""
    addresses: list[str] = []
    tag: str = ""
    vif_type: str = ""
    vif_details: dict[str, Any] = {}
    vnic_type: str = ""
    # In bytes; 0 if it is unknown.
    mtu: int = 0
    # Those of a real Neutron's port, for the guest's metadata. Without them the guest is told to use DHCP.
    subnets: list[WiredSubnet] = []

    def __repr__(self) -> str:
        return f"Nic(port_id={self.port_id!r})"


class Key(Message, frozen=True, kw_only=True):
    name: str
    public_key: str
    type: str = "ssh"


class File(Message, frozen=True, kw_only=True):
    """A file that the guest finds in its metadata. The guest itself writes it to the path."""

    path: str
    content: bytes

    def __repr__(self) -> str:
        return f"File(path={self.path!r})"


class Disk(Message, frozen=True, kw_only=True):
    """A volume in a guest. `connection` is the volume service's connection info for the host."""

    volume_id: str
    connection: dict[str, Any] = {}
    device: str = ""
    boot_index: int | None = None
    bus: str = ""
    type: str = "disk"
    tag: str = ""
    read_only: bool = False
    # Whether other guests may use the volume at the same time (multiattach).
    shared: bool = False

    def __repr__(self) -> str:
        # A connection may contain credentials of the storage.
        return f"Disk(volume_id={self.volume_id!r}, device={self.device!r})"


class LocalDisk(Message, frozen=True, kw_only=True):
    """An empty disk of the guest's lifetime: ephemeral, or swap where `format` says so."""

    size_mb: int
    device: str = ""
    format: str = ""
    tag: str = ""


class Share(Message, frozen=True, kw_only=True):
    """A file share, which the guest mounts by its tag.

    `location` is `machine:path`: of a directory on the host's own machine, or of an NFS export.
    """

    share_id: str
    tag: str
    kind: ShareKind
    location: str


class Guest(Message, frozen=True, kw_only=True):
    """Everything that a hypervisor needs to build a guest. `user_data` is decoded."""

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
    # Properties of the image that the boot volume was created from.
    volume_properties: dict[str, str] = {}
    # Set when the guest is stopped; a guest is never built with shares.
    shares: list[Share] = []
    # None: ephemeral disk and swap as in the flavor.
    local_disks: list[LocalDisk] | None = None
    key: Key | None = None
    config_drive: bool = False
    metadata: dict[str, str] = {}
    user_data: bytes | None = None
    files: list[File] = []
    # Further fields of the guest's metadata.
    availability_zone: str = ""
    launch_index: int = 0
    reservation_id: str = ""
    created_at: float = 0.0
    # The admin password that the guest has published, encrypted with its key.
    sealed_password: str = ""

    def __repr__(self) -> str:
        # User data, files and metadata may contain secrets, which must not reach logs.
        return f"Guest(id={self.id!r}, name={self.name!r})"

    @property
    def properties(self) -> dict[str, str]:
        """Image properties, also for a guest that boots from a volume."""
        return self.image.properties if self.image is not None else self.volume_properties

    def has_same_hardware(self, other: Guest) -> bool:
        """Compare the hardware only: name, metadata and volume connections may change during a guest's life."""
        return self._hardware() == other._hardware()

    def _hardware(self) -> tuple[object, ...]:
        volumes = sorted(disk.volume_id for disk in self.disks)
        # Agents of older releases do not store the hash.
        image = self.image and structs.replace(self.image, hash="")
        # A port keeps its identity when it is bound again.
        nics = [structs.replace(nic, vif_type="", vif_details={}, vnic_type="", mtu=0, subnets=[]) for nic in self.nics]
        return self.id, self.flavor, image, self.volume_properties, nics, volumes, self.local_disks


class GuestState(Message, frozen=True, kw_only=True):
    """The state of a guest, or with `slot` of a parked or incoming one. `disk` identifies the content of its disk."""

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
    # Volume ids.
    volumes: list[str] = []
    # The admin password, encrypted with the guest's key.
    sealed_password: str = ""


class MigrationState(Message, frozen=True, kw_only=True):
    """The progress of a live migration, in bytes."""

    memory_total: int = 0
    memory_processed: int = 0
    disk_total: int = 0
    disk_processed: int = 0

    @property
    def percent(self) -> int:
        total = self.memory_total + self.disk_total
        return 100 * (self.memory_processed + self.disk_processed) // total if total else 0


class Transfer(msgspec.Struct, kw_only=True):
    """An image whose data the host reads or writes, and a ticket for it.

    `url` is a path of the image service. The host knows the service's address, so that it sends the ticket nowhere
    else. A repeated command brings a new ticket to the work under way, so the ticket can change.
    """

    url: str
    # Older agents know it as a token.
    ticket: str = msgspec.field(name="token")

    def __repr__(self) -> str:
        return f"Transfer(url={self.url!r})"


class MoveTicket(Message, frozen=True, kw_only=True):
    """A secret that the control plane makes for one move, and gives to its source and its destination only.

    The hosts sign their requests to each other with it.
    """

    key: str

    def __repr__(self) -> str:
        return "MoveTicket()"
