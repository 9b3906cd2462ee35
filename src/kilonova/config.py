"""Configuration: a TOML file, overridden by `KILONOVA_*` in the environment, overridden by flags.

`KILONOVA_SIM__HOSTS=5` sets `hosts` of the section `[sim]`; `KILONOVA_PORT=0` a key of no section.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kilonova.scheduler.config import SchedulerConfig


class ConfigError(Exception):
    pass


class Log(msgspec.Struct, forbid_unknown_fields=True):
    """Where logs go (`-` is standard error; empty is `kilonova.log` in the data directory) and from which level."""

    level: str = "info"
    file: str = ""


class Api(msgspec.Struct, forbid_unknown_fields=True):
    """Limits of requests."""

    max_limit: int = 1000
    body_limit: int = 114688


class Identity(msgspec.Struct, forbid_unknown_fields=True):
    """The built-in identity service. `auth_url` is for a real Keystone; this release refuses it.

    `token_keys`, newest first, are for API processes that share no data directory; without them keys are kept there.
    """

    token_seconds: int = 3600
    token_keys: list[str] = []
    region: str = "RegionOne"
    auth_url: str = ""


class Image(msgspec.Struct, forbid_unknown_fields=True):
    """The built-in image service. `url` is for a real Glance; this release refuses it."""

    max_bytes: int = 64 * 2**30
    url: str = ""


class Network(msgspec.Struct, forbid_unknown_fields=True):
    """The built-in network service. `url` is for a real Neutron; this release refuses it."""

    url: str = ""


class Volume(msgspec.Struct, forbid_unknown_fields=True):
    """Volumes: of the built-in service, or with `url` (without a version) of a Cinder that trusts the same identity
    service. The built-in one copies `copies` volumes at a time, and its quotas are those of the section `volume_quota`.
    Hosts with real guests reach its volumes by NBD at `nbd_address` and `nbd_port` (0: any free one); with `nbd_tls`,
    a directory with `ca-cert.pem`, `server-cert.pem` and `server-key.pem`, by TLS and with certificates of their own.
    It keeps the messages that say why something failed for `message_days`.
    """

    url: str = ""
    copies: int = 4
    nbd_address: str = "127.0.0.1"
    nbd_port: int = 0
    nbd_tls: str = ""
    message_days: float = 30.0


class VolumeQuota(msgspec.Struct, forbid_unknown_fields=True):
    """Default limits of a project at the built-in volume service; sizes in GiB, -1 is none."""

    volumes: int = 10
    snapshots: int = 10
    gigabytes: int = 1000
    per_volume_gigabytes: int = -1
    backups: int = 10
    backup_gigabytes: int = 1000
    groups: int = 10


class Placement(msgspec.Struct, forbid_unknown_fields=True):
    """The Placement API. With `port` it also stands at the root of a port of its own (0: any free one).

    Consumers that callers of old versions make, which name no project and no user, get those named here.
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
    """The durable engine: how long a lease lasts, how many operations a worker has at a time (of servers
    and of volumes each), on how many hosts the building of a server is tried, and after how many seconds without any
    answer from a host an operation goes on without it.
    """

    lease_seconds: float = 15.0
    slots: int = 64
    sweep_seconds: float = 5.0
    boot_hosts: int = 3
    host_seconds: float = 60.0


class Compute(msgspec.Struct, forbid_unknown_fields=True):
    """Servers: whether a resize may stay on its host; after how many seconds a resize is confirmed by itself (0: never)
    and a shelved server leaves its host (0: at once, -1: never); for how many seconds per GiB of its memory a live
    migration may run, and how many may leave one host at a time (0: any number); how many seconds per GiB of an image
    the volume service has for replacing a volume's content by it, and as many again besides; for how many seconds a
    guest's system may shut down by itself before its power is cut, unless its image says otherwise; and for how many
    seconds a deleted server can be restored (0: it is deleted at once).
    """

    resize_on_same_host: bool = False
    resize_confirm_seconds: float = 0.0
    shelved_offload_seconds: float = 0.0
    live_migration_seconds: float = 800.0
    live_migrations_per_host: int = 4
    reimage_seconds: float = 20.0
    shutdown_seconds: float = 60.0
    reclaim_seconds: float = 0.0


class Hosts(msgspec.Struct, forbid_unknown_fields=True):
    """Agents: how often they report, and after how long without a report a host is down."""

    report_seconds: float = 10.0
    down_seconds: float = 60.0


class Messaging(msgspec.Struct, forbid_unknown_fields=True):
    """How agents in processes of their own are reached: the NATS server, if there is one. `prefix` begins all subjects,
    so that several clouds may share a server; the certificates are those of this process.
    """

    url: str = ""
    prefix: str = "kilonova"
    user: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class Agent(msgspec.Struct, forbid_unknown_fields=True):
    """The agent of one host: its name (empty: the machine's), the address by which other hosts reach it, where the
    image service is, where other agents fetch disks that move, and the secret that they share for that. With the files
    of an authority, a certificate and its key they fetch them by TLS, and both prove who they are. Guests' data lie in
    `instances`; empty is `instances` in the data directory.
    """

    host: str = ""
    address: str = "127.0.0.1"
    image_url: str = ""
    disk_port: int = 0
    disk_secret: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    instances: str = ""


class Libvirt(msgspec.Struct, forbid_unknown_fields=True):
    """Real guests. `migration_uri` is how other hosts reach this libvirt (`{address}` is the agent's address), and
    `migration_address` where guests come in. `migration_tls`: guests come and go by TLS alone. `nbd_tls`: volumes can
    be reached by TLS. For both libvirt's `qemu.conf` says where the certificates are. `force_complete`: by `pause` or
    `postcopy`. `reserved_*` is what guests do not get; images that no guest has used for `image_cache_seconds` go.
    """

    uri: str = "qemu:///system"
    virt_type: str = ""
    machine: str = "pc"
    cpu_mode: str = ""
    cpu_model: str = ""
    cache_mode: str = "none"
    migration_uri: str = "qemu+tcp://{address}/system"
    migration_address: str = ""
    migration_mb_per_second: int = 0
    migration_downtime_ms: int = 500
    migration_tls: bool = False
    nbd_tls: bool = False
    auto_converge: bool = True
    force_complete: Literal["pause", "postcopy"] = "pause"
    vnc_listen: str = "127.0.0.1"
    vnc_address: str = "127.0.0.1"
    cpu_ratio: float = 4.0
    memory_ratio: float = 1.0
    disk_ratio: float = 1.0
    reserved_memory_mb: int = 512
    reserved_disk_gb: int = 0
    image_cache_seconds: int = 86400
    vendor_data: str = ""


class Bridges(msgspec.Struct, forbid_unknown_fields=True):
    """Networks of real guests on a host: between hosts by VXLAN on `vxlan_port`, to the outside by NAT through
    `outside`, an interface (empty: that of the default route), unless `nat` is off. Guests reach nothing there of what
    is `closed`, addresses or prefixes: put in it what is the operator's alone. Hosts that share a network with this one
    are closed without being named. Names of what is made on the host begin with `prefix`, 2 to 6 letters and digits.
    """

    enabled: bool = True
    nat: bool = True
    outside: str = ""
    closed: list[str] = []
    vxlan_port: int = 4789
    prefix: str = "kn"


class Console(msgspec.Struct, forbid_unknown_fields=True):
    """Remote consoles: where browsers reach the proxy (empty: this process), for how many seconds a link is good, and
    the directory with noVNC.
    """

    url: str = ""
    token_seconds: int = 600
    novnc: str = "/usr/share/novnc"


class Sim(msgspec.Struct, forbid_unknown_fields=True):
    """Simulated hosts: how many, how large, how slow; or with `shape` a file that says what they are made of."""

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
    """Default limits of a project; -1 is none."""

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
    """The whole configuration of a process."""

    data: str = "data"
    port: int = 8774
    host: str = "127.0.0.1"
    driver: str = "sim"
    database: str = ""
    zones: list[str] = []
    policy: str = ""
    public_url: str = ""
    log: Log = msgspec.field(default_factory=Log)
    api: Api = msgspec.field(default_factory=Api)
    identity: Identity = msgspec.field(default_factory=Identity)
    image: Image = msgspec.field(default_factory=Image)
    network: Network = msgspec.field(default_factory=Network)
    volume: Volume = msgspec.field(default_factory=Volume)
    placement: Placement = msgspec.field(default_factory=Placement)
    cors: Cors = msgspec.field(default_factory=Cors)
    operations: Operations = msgspec.field(default_factory=Operations)
    compute: Compute = msgspec.field(default_factory=Compute)
    hosts: Hosts = msgspec.field(default_factory=Hosts)
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

    @property
    def data_dir(self) -> Path:
        return Path(self.data).absolute()

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.data_dir / 'kilonova.db'}"


def load(
    file: Path | None = None, environ: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None
) -> Config:
    """`flags` are dotted keys (`sim.hosts`); those with the value None were not given."""
    values: dict[str, Any] = _read(file) if file else {}
    for name, text in environ.items():
        if name.startswith("KILONOVA_") and name not in _NOT_CONFIG:
            _put(values, name.removeprefix("KILONOVA_").lower().split("__"), text)
    for dotted, value in (flags or {}).items():
        if value is not None:
            _put(values, dotted.split("."), value)
    try:
        return msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"Configuration: {error}") from None


# Settings that the environment and flags give as words with commas between them.
_LISTS = frozenset(
    {"zones", "filters", "isolated_hosts", "isolated_images", "token_keys", "allowed_origin", "allow_headers", "closed"}
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
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"Configuration: {part} is a section, not a value")
    if isinstance(value, str) and path[-1] in _LISTS:
        value = [item.strip() for item in value.split(",") if item.strip()]
    values[path[-1]] = value
