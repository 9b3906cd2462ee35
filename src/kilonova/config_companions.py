"""Settings of the services beside compute, built in or real: identity, image, network, volume and share."""

from __future__ import annotations

from typing import Literal

import msgspec

# The `url` of a built-in service beside a real Keystone.
BUILT_IN = "built-in"


class Identity(msgspec.Struct, forbid_unknown_fields=True):
    """The built-in identity service, or with `auth_url` (such as `https://keystone.example:5000/v3`) a real Keystone.

    With `auth_url`, Kilonova logs in there as `username` with `password` in the project `project_name`; the domains of
    both are names. `kilonova register` creates the user. `ca_file` has the authority of Keystone's certificate (empty:
    the system's authorities). Endpoints of other services are those of `region` and `interface`. Tokens of users are
    validated again after `token_cache_seconds`; until then a revoked token is accepted, also while Keystone is down.

    `token_keys` sign tokens, newest first. Set them if API processes share no data directory; without them each process
    keeps its keys in its data directory. `credential_keys` encrypt the credentials that users store, newest first. With
    `token_keys` they are needed to store credentials. A user can have `credentials_per_user`; -1 is unlimited. A
    request that is signed with EC2 credentials is valid for `signed_request_seconds`.
    """

    token_seconds: int = 3600
    signed_request_seconds: int = 900
    token_keys: list[str] = []
    credential_keys: list[str] = []
    credentials_per_user: int = 200
    region: str = "RegionOne"
    auth_url: str = ""
    username: str = "kilonova"
    password: str = ""
    project_name: str = "service"
    user_domain_name: str = "Default"
    project_domain_name: str = "Default"
    ca_file: str = ""
    interface: Literal["internal", "public", "admin"] = "internal"
    token_cache_seconds: float = 10.0


class Image(msgspec.Struct, forbid_unknown_fields=True):
    """The built-in image service, or with `url` (without a version) a Glance that trusts the same identity service.

    With `identity.auth_url`, an empty `url` is that of Keystone's catalogue, and `built-in` is the built-in service.
    `ca_file` has the authority of the service's certificate (empty: the system's authorities).
    """

    max_bytes: int = 64 * 2**30
    url: str = ""
    ca_file: str = ""


class ImageQuota(msgspec.Struct, forbid_unknown_fields=True):
    """Quota of a project for images, under the names of Glance; -1 is unlimited.

    `image_size_total` is the size of all data in MiB. `image_count_total` is the number of images, with and without
    data. Snapshots, backups and shelved servers count as well.
    """

    image_size_total: int = 1024000
    image_count_total: int = 1000


class Network(msgspec.Struct, forbid_unknown_fields=True):
    """The built-in network service, or with `url` (without a version) a Neutron that trusts the same identity service.
    `url` and `ca_file` are as in `[image]`.

    The other settings are for a Neutron. A server that is built or moved waits up to `vif_plugging_timeout_seconds` (0:
    not at all) until Neutron reports its ports as plugged. Then the operation fails, or with `vif_plugging_is_fatal =
    false` it continues. Compute stores what it shows of interfaces. Neutron reports changes, except of security
    groups; all interfaces are read again every `refresh_seconds` (0: never), also in case a report got lost.
    """

    url: str = ""
    ca_file: str = ""
    vif_plugging_timeout_seconds: float = 300.0
    vif_plugging_is_fatal: bool = True
    refresh_seconds: float = 600.0


class Volume(msgspec.Struct, forbid_unknown_fields=True):
    """The built-in volume service, or with `url` (without a version) a Cinder that trusts the same identity service.
    `url` and `ca_file` are as in `[image]`.

    `concurrent_copies` limits how many volumes are copied at a time. Hosts with real guests connect to volumes by NBD
    at `nbd_address` and `nbd_port` (0 picks a free port). `nbd_tls` is a directory with `ca-cert.pem`,
    `server-cert.pem` and `server-key.pem`; with it connections use TLS and hosts need certificates.

    With `cross_az_attach` off, a server and its volumes must be in the same availability zone.
    """

    url: str = ""
    ca_file: str = ""
    cross_az_attach: bool = True
    concurrent_copies: int = 4
    nbd_address: str = "127.0.0.1"
    nbd_port: int = 0
    nbd_tls: str = ""


class VolumeQuota(msgspec.Struct, forbid_unknown_fields=True):
    """Default volume quota of a project. Sizes are in GiB; -1 is unlimited."""

    volumes: int = 10
    snapshots: int = 10
    gigabytes: int = 1000
    per_volume_gigabytes: int = -1
    backups: int = 10
    backup_gigabytes: int = 1000
    groups: int = 10


class Share(msgspec.Struct, forbid_unknown_fields=True):
    """The built-in share service, or with `url` (without a version) a Manila that trusts the same identity service.
    `url` and `ca_file` are as in `[image]`.

    Shares of the built-in service are directories below `directory` (empty: `shares` in the data directory). Only
    hosts on the same machine can present them to guests.
    """

    url: str = ""
    ca_file: str = ""
    directory: str = ""


class ShareQuota(msgspec.Struct, forbid_unknown_fields=True):
    """Default share quota of a project. Sizes are in GiB; -1 is unlimited."""

    shares: int = 50
    gigabytes: int = 1000
    per_share_gigabytes: int = -1
