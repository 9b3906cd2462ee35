"""The configuration of a process: defaults, then a TOML file, then `KILONOVA_*` variables, then flags.

`KILONOVA_SIM__HOSTS=5` sets `hosts` of the section `[sim]`. `KILONOVA_PORT=0` sets `port`, which is in no section.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kilonova.config_checks import check_instance_names, check_zones
from kilonova.config_companions import (
    BUILT_IN,
    Identity,
    Image,
    ImageQuota,
    Network,
    Share,
    ShareQuota,
    Volume,
    VolumeQuota,
)
from kilonova.config_names import ConfigError, drop_removed, new_name, use_new_names
from kilonova.scheduler.config import SchedulerConfig


class Log(msgspec.Struct, forbid_unknown_fields=True):
    """Logging. `file` is a path; `-` is standard error, and empty is `kilonova.log` in the data directory."""

    level: str = "info"
    file: str = ""


class Audit(msgspec.Struct, forbid_unknown_fields=True):
    """The audit log of changes and refused requests. `file` is a path; `-` is standard error, and empty is `audit.log`
    in the data directory. With `reads` it has all reads too.
    """

    enabled: bool = True
    file: str = ""
    reads: bool = False


class Api(msgspec.Struct, forbid_unknown_fields=True):
    """Limits of requests: entries on a page, and bytes of a body.

    An address may have `max_connections_per_address` connections, a process `max_connections` (0: half of its file
    descriptors). A user in a project may send `requests_per_second_per_user`, an address
    `requests_per_second_per_address`, and ten times as many at once after a pause. 0 is unlimited.
    """

    max_limit: int = 1000
    body_limit: int = 114688
    max_connections: int = 0
    max_connections_per_address: int = 0
    requests_per_second_per_user: float = 0.0
    requests_per_second_per_address: float = 0.0


class Placement(msgspec.Struct, forbid_unknown_fields=True):
    """The Placement API. With `port` it is also served at the root of that port (0 picks a free port).

    Callers of old microversions create consumers without project and user; those get the ids named here.
    """

    port: int | None = None
    incomplete_project_id: str = "00000000-0000-0000-0000-000000000000"
    incomplete_user_id: str = "00000000-0000-0000-0000-000000000000"


class Cors(msgspec.Struct, forbid_unknown_fields=True):
    """Origins (`https://dashboard.example`, or `*`) whose pages may call the APIs from a browser."""

    allowed_origin: list[str] = []
    allow_headers: list[str] = msgspec.field(
        default_factory=lambda: ["Content-Type", "X-Auth-Token", "X-Subject-Token", "OpenStack-API-Version"]
    )


class Operations(msgspec.Struct, forbid_unknown_fields=True):
    """The operation engine.

    A worker's lease lasts `lease_seconds`. A worker runs at most `slots` operations per lane and polls for due ones
    every `poll_seconds`. A server is built on at most `max_build_attempts` hosts. An operation continues without a host
    that has not responded for `host_timeout_seconds`.
    """

    lease_seconds: float = 15.0
    slots: int = 64
    poll_seconds: float = 5.0
    max_build_attempts: int = 3
    host_timeout_seconds: float = 60.0


class Compute(msgspec.Struct, forbid_unknown_fields=True):
    """Servers.

    `resize_on_same_host`: a resize may stay on its host. `resize_confirm_seconds`: resizes are confirmed automatically
    after this time (0: never). `shelved_offload_seconds`: a shelved server leaves its host after this time (0: at once,
    -1: never). `live_migration_seconds_per_gib`: time limit of a live migration per GiB of memory.
    `live_migrations_per_host`: how many may leave one host at a time (0: unlimited). `reimage_seconds_per_gib`: time
    limit for re-imaging a volume, per GiB of the image, plus once more. `shutdown_timeout_seconds`: how long a guest
    may shut down before it is powered off, unless its image says otherwise. `reclaim_seconds`: how long a deleted
    server can be restored (0: it is deleted at once). `instance_name_template`: `OS-EXT-SRV-ATTR:instance_name` of
    servers, which must have `%(uuid)s` or a part of the uuid.
    """

    resize_on_same_host: bool = False
    resize_confirm_seconds: float = 0.0
    shelved_offload_seconds: float = 0.0
    live_migration_seconds_per_gib: float = 800.0
    live_migrations_per_host: int = 4
    reimage_seconds_per_gib: float = 20.0
    shutdown_timeout_seconds: float = 60.0
    reclaim_seconds: float = 0.0
    instance_name_template: str = "instance-%(uuid).8s"


class Hosts(msgspec.Struct, forbid_unknown_fields=True):
    """Agents report every `report_seconds`. A host without a report for `down_seconds` is down."""

    report_seconds: float = 10.0
    down_seconds: float = 60.0


class Retention(msgspec.Struct, forbid_unknown_fields=True):
    """How many days rows are kept in the database (-1: forever).

    `kilonova db purge` deletes older rows. With `purge`, workers do so every hour. Deleted servers are kept for
    `server_days`, finished operations with their instance actions and migrations for `operation_days`, diagnoses of the
    scheduler for `attempt_days`, and conductors and schedulers that do not report for `service_days`. Messages of the
    volume service expire after `message_days`, also without a purge.
    """

    purge: bool = False
    server_days: float = 90.0
    operation_days: float = 90.0
    attempt_days: float = 30.0
    message_days: float = 30.0
    service_days: float = 30.0


class Messaging(msgspec.Struct, forbid_unknown_fields=True):
    """The NATS server that connects agents and control plane. `prefix` begins all subjects, so that several clouds can
    share a server. The certificate is that of this process.
    """

    url: str = ""
    prefix: str = "kilonova"
    user: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class Agent(msgspec.Struct, forbid_unknown_fields=True):
    """The agent of one host.

    `host` is its name (empty: the machine's name) and `address` the address at which other hosts reach it. It gets
    images from the control plane at `image_url`; `image_ca_file` has the authority of its certificate (empty: the
    system's authorities, and that of `ca_file`). Agents fetch disks of moving guests from each other at `disk_port`;
    with `ca_file`, `cert_file` and `key_file` by mutual TLS. Guests' disks are in `instances_path` (empty: `instances`
    in the data directory).
    """

    host: str = ""
    address: str = "127.0.0.1"
    image_url: str = ""
    image_ca_file: str = ""
    disk_port: int = 0
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    instances_path: str = ""


class Libvirt(msgspec.Struct, forbid_unknown_fields=True):
    """Real guests.

    Other hosts reach this libvirt at `migration_uri`, where `{address}` is the agent's address; migrating guests arrive
    at `migration_address`. With `migration_tls` guests migrate by TLS only; with `nbd_tls` volumes can be connected by
    TLS. The certificates of both are set in libvirt's `qemu.conf`. `reserved_*` is kept for the host. An image that no
    guest has used for `image_cache_seconds` is removed.

    Ports of a real Neutron are connected to the Open vSwitch whose database is at `ovsdb_connection`: libvirt and
    ovn-controller must use the same. With `volume_use_multipath` the host connects to volumes by several paths, which
    requires multipathd. If `rbd_secret_uuid` names a secret of libvirt, guests use RBD volumes with it, as `rbd_user`
    (empty: Cinder's user).
    """

    uri: str = "qemu:///system"
    virt_type: str = ""
    machine_type: str = "pc"
    cpu_mode: str = ""
    cpu_model: str = ""
    cache_mode: str = "none"
    migration_uri: str = "qemu+tcp://{address}/system"
    migration_address: str = ""
    migration_mb_per_second: int = 0
    migration_downtime_ms: int = 500
    migration_tls: bool = False
    nbd_tls: bool = False
    volume_use_multipath: bool = False
    rbd_user: str = ""
    rbd_secret_uuid: str = ""
    auto_converge: bool = True
    force_complete: Literal["pause", "postcopy"] = "pause"
    cpu_allocation_ratio: float = 4.0
    ram_allocation_ratio: float = 1.0
    disk_allocation_ratio: float = 1.0
    reserved_memory_mb: int = 512
    reserved_disk_gb: int = 0
    image_cache_seconds: int = 86400
    vendor_data: str = ""
    ovsdb_connection: str = "unix:/var/run/openvswitch/db.sock"


class Bridges(msgspec.Struct, forbid_unknown_fields=True):
    """Networks of real guests, built by their hosts. Off with a real Neutron; set `enabled = false` on its agents.

    Hosts connect networks by VXLAN on `vxlan_port`. Unless `nat` is off, guests reach external networks by NAT through
    `external_interface` (empty: that of the default route), except `blocked_addresses` (addresses or prefixes): list
    there what only operators may reach. Hosts that share a network with this one are blocked without being listed.
    Names of devices on the host begin with `prefix`, 2 to 6 letters and digits.
    """

    enabled: bool = True
    nat: bool = True
    external_interface: str = ""
    blocked_addresses: list[str] = []
    vxlan_port: int = 4789
    prefix: str = "kn"


class Console(msgspec.Struct, forbid_unknown_fields=True):
    """Remote consoles. Browsers reach the proxy at `url` (empty: this process). A link is valid for `token_seconds`."""

    url: str = ""
    token_seconds: int = 600
    novnc_path: str = "/usr/share/novnc"


class Sim(msgspec.Struct, forbid_unknown_fields=True):
    """Simulated hosts: their number, size and latency. `shape` is a file that describes them instead."""

    hosts: int = 3
    vcpus: int = 32
    memory_mb: int = 65536
    disk_gb: int = 1000
    shape: str = ""
    latency: dict[str, float] = {}


class DelaysConfig(msgspec.Struct, forbid_unknown_fields=True):
    """For tests of timing: a random delay of at most `milliseconds` before and after every statement, host command and
    HTTP call between services. Most delays are much shorter. `make soak` runs the tests with delays.
    """

    milliseconds: float = 0.0
    seed: int = 0


class Quota(msgspec.Struct, forbid_unknown_fields=True):
    """Default quota of a project; -1 is unlimited.

    With the driver `unified`, limits are Keystone's unified limits, and those here have no effect. They are read again
    after `unified_limits_cache_seconds`. With the strategy `require`, a resource of `unified_limits_resource_list` has
    the limit 0 until it has a registered limit, and any other is unlimited; with `ignore` it is the other way round.
    """

    driver: Literal["database", "unified"] = "database"
    unified_limits_resource_strategy: Literal["require", "ignore"] = "require"
    unified_limits_resource_list: list[str] = msgspec.field(default_factory=lambda: ["servers"])
    unified_limits_cache_seconds: float = 10.0
    instances: int = 10
    cores: int = 20
    ram: int = 51200
    metadata_items: int = 128
    key_pairs: int = 100
    server_groups: int = 10
    server_group_members: int = 10
    injected_files: int = 5
    injected_file_content_bytes: int = 10240
    injected_file_path_bytes: int = 255


class Config(msgspec.Struct, forbid_unknown_fields=True):
    """The whole configuration of a process.

    With `tls_cert` and `tls_key` (PEM files) the APIs use HTTPS. `tls_ca` is a file with the authority that clients
    need to verify `public_url`; `clouds.yaml` names it (empty: clients use the system's authorities). `tls` creates a
    certificate and an authority of its own in the data directory. Unless `insecure` is on, a process does not start if
    it would send data over a network without encryption. Only requests from `trusted_proxies` (addresses or prefixes)
    may name their client, scheme and host in `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.

    Images and volumes leave `reserved_disk_gb` GiB free on the disk of the data directory.
    """

    data: str = "data"
    port: int = 8774
    host: str = "127.0.0.1"
    driver: str = "sim"
    database: str = ""
    zones: list[str] = []
    policy: str = ""
    public_url: str = ""
    tls: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    insecure: bool = False
    trusted_proxies: list[str] = []
    reserved_disk_gb: float = 1.0
    log: Log = msgspec.field(default_factory=Log)
    audit: Audit = msgspec.field(default_factory=Audit)
    api: Api = msgspec.field(default_factory=Api)
    identity: Identity = msgspec.field(default_factory=Identity)
    image: Image = msgspec.field(default_factory=Image)
    network: Network = msgspec.field(default_factory=Network)
    volume: Volume = msgspec.field(default_factory=Volume)
    share: Share = msgspec.field(default_factory=Share)
    placement: Placement = msgspec.field(default_factory=Placement)
    cors: Cors = msgspec.field(default_factory=Cors)
    operations: Operations = msgspec.field(default_factory=Operations)
    compute: Compute = msgspec.field(default_factory=Compute)
    hosts: Hosts = msgspec.field(default_factory=Hosts)
    retention: Retention = msgspec.field(default_factory=Retention)
    messaging: Messaging = msgspec.field(default_factory=Messaging)
    agent: Agent = msgspec.field(default_factory=Agent)
    libvirt: Libvirt = msgspec.field(default_factory=Libvirt)
    bridges: Bridges = msgspec.field(default_factory=Bridges)
    console: Console = msgspec.field(default_factory=Console)
    sim: Sim = msgspec.field(default_factory=Sim)
    delays: DelaysConfig = msgspec.field(default_factory=DelaysConfig)
    scheduler: SchedulerConfig = msgspec.field(default_factory=SchedulerConfig)
    quota: Quota = msgspec.field(default_factory=Quota)
    volume_quota: VolumeQuota = msgspec.field(default_factory=VolumeQuota)
    share_quota: ShareQuota = msgspec.field(default_factory=ShareQuota)
    image_quota: ImageQuota = msgspec.field(default_factory=ImageQuota)

    def is_built_in(self, service: str) -> bool:
        """Whether the cloud has the service itself: `identity`, `image`, `network`, `volume` or `share`."""
        if service == "identity":
            return not self.identity.auth_url
        url = str(getattr(self, service).url)
        return url == BUILT_IN or not (url or self.identity.auth_url)

    @property
    def builds_networks(self) -> bool:
        """Whether real hosts of this process build the networks of their guests. A real Neutron builds its own."""
        return self.bridges.enabled and self.is_built_in("network")

    def serves(self, service: str) -> bool:
        """Whether the process serves its own API of the service. With the built-in identity service it serves all."""
        return self.is_built_in(service) or self.is_built_in("identity")

    @property
    def data_dir(self) -> Path:
        return Path(self.data).absolute()

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data_dir / 'kilonova.db'}"


def load(
    file: Path | None = None, environ: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None
) -> Config:
    """`flags` are dotted keys (`sim.hosts`). A flag with the value None was not given."""
    values: dict[str, Any] = use_new_names(_read(file)) if file else {}
    for name, text in environ.items():
        if name.startswith("KILONOVA_") and name not in _NOT_CONFIG:
            _put(values, name.removeprefix("KILONOVA_").lower().split("__"), text)
    for dotted, value in (flags or {}).items():
        if value is not None:
            _put(values, dotted.split("."), value)
    drop_removed(values)
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"Configuration: {error}") from None
    check_zones("zones", config.zones)
    check_zones("scheduler.default_zone", [config.scheduler.default_zone])
    check_instance_names(config.compute.instance_name_template)
    return config


# Settings that the environment and flags give as comma-separated lists.
_LISTS = frozenset(
    {
        "zones",
        "filters",
        "isolated_hosts",
        "isolated_images",
        "token_keys",
        "credential_keys",
        "allowed_origin",
        "allow_headers",
        "blocked_addresses",
        "trusted_proxies",
        "unified_limits_resource_list",
    }
)
_NOT_CONFIG = frozenset({"KILONOVA_REQUIRE_ALL", "KILONOVA_CONFIG"})


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"Configuration file {file}: {error.strerror}") from None
    except ValueError as error:  # no TOML, or not even text
        raise ConfigError(f"Configuration file {file}: {error}") from None


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    if len(path) == 2:
        path = list(new_name(*path))
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"Configuration: {part} is a section, not a value")
    if isinstance(value, str) and path[-1] in _LISTS:
        value = [item.strip() for item in value.split(",") if item.strip()]
    values[path[-1]] = value
