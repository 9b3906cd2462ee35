"""The server as a record, with its embedded flavor, its interfaces and its fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct

from kilonova.network.client import Subnet
from kilonova.operations.errors import Failed
from kilonova.store.records import Record

# A column's value, as the database stores it.
Value = str | float | bool | None


class EmbeddedFlavor(Struct, frozen=True):
    """The server's copy of its flavor."""

    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    extra_specs: dict[str, str]


class Interface(Struct, frozen=True, omit_defaults=True):
    """`given`: the port was requested by the user, so it outlives the server.

    The fields with defaults are set with a real Neutron only: how it has bound the port, and what servers show.
    """

    port_id: str
    network_id: str
    label: str
    mac: str
    addresses: list[str]
    security_groups: list[str]
    tag: str | None
    given: bool
    vif_type: str = ""
    vif_details: dict[str, object] = {}
    vnic_type: str = ""
    mtu: int = 0
    # Those of the addresses, for the guest's metadata.
    subnets: list[Subnet] = []
    # The key `allocation` of the port's profile: the resource providers that its resources come from.
    allocation: object = None
    floating_ips: list[str] = []


class Fault(Struct, frozen=True, kw_only=True):
    """`details` are for administrators."""

    code: int
    message: str
    details: str | None = None
    created_at: float


def instance_name(template: str, server_id: str) -> str:
    """The value of `OS-EXT-SRV-ATTR:instance_name`."""
    return template % {"uuid": server_id}


class File(Struct, frozen=True):
    """A file for the guest. `contents` is encoded in base64, as in the request."""

    path: str
    contents: str

    def __repr__(self) -> str:
        return f"File(path={self.path!r})"


class Server(Record, frozen=True):
    table: ClassVar[str] = "servers"

    id: str
    project_id: str
    user_id: str
    name: str
    hostname: str
    vm_state: str
    power_state: int
    flavor_id: str
    flavor: EmbeddedFlavor
    # Quota usage: the flavor's values, or the larger of both flavors while a resize or revert runs.
    vcpus: int
    ram: int
    image_properties: dict[str, str]
    metadata: dict[str, str]
    nics: list[Interface]
    scheduler_hints: dict[str, object]
    config_drive: bool
    disk_config: str
    reservation_id: str
    launch_index: int
    created_at: float
    updated_at: float
    description: str | None = None
    host: str | None = None
    hypervisor_hostname: str | None = None
    pinned_zone: str | None = None
    image_id: str | None = None
    image_hash: str | None = None
    key_name: str | None = None
    public_key: str | None = None
    user_data: str | None = None
    personality: list[File] | None = None
    sealed_password: str | None = None
    access_ip_v4: str | None = None
    access_ip_v6: str | None = None
    root_device_name: str | None = None
    shelved_at: float | None = None
    shelved_image_id: str | None = None
    shelved_image_hash: str | None = None
    soft_deleted_at: float | None = None
    trusted_certificates: list[str] | None = None
    locked: bool = False
    locked_reason: str | None = None
    locked_by: str | None = None
    fault: Fault | None = None
    deleted: bool = False
    launched_at: float | None = None
    terminated_at: float | None = None

    @property
    def host_name(self) -> str:
        """The host of a server that must have one."""
        if self.host is None:
            raise Failed(f"Instance {self.id} has no host.")
        return self.host

    @property
    def is_volume_backed(self) -> bool:
        """Whether the server boots from a volume; then it has no image."""
        return self.image_id is None

    @property
    def is_shelved(self) -> bool:
        """Whether the server has to be unshelved. It may be in error."""
        return self.shelved_at is not None

    def find_interface(self, port_id: str) -> Interface | None:
        return next((interface for interface in self.nics if interface.port_id == port_id), None)

    def with_columns(self, columns: Mapping[str, Value]) -> Server:
        """A copy with other values of these columns, as the database stores them."""
        return Server.decode({**self.encode(), **columns})
