"""The settings of `[scheduler]`."""

from __future__ import annotations

import msgspec

# A rejected host counts for the first reason: first what the user can change, then operator settings, then capacity.
FILTERS = (
    *("compute_up", "zone", "requested_destination", "excluded", "same_host", "different_host"),
    *("affinity", "anti_affinity", "tenant_isolation", "aggregate_extra_specs", "image_properties", "capabilities"),
    *("traits", "capacity"),
)
WEIGHTS = {
    "ram": 1.0,
    "cpu": 1.0,
    "disk": 1.0,
    "io_ops": -1.0,
    "soft_affinity": 1.0,
    "soft_anti_affinity": 1.0,
    "build_failure": 1_000_000.0,
    "hypervisor_version": 1.0,
    "num_instances": 0.0,
}


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters in their order, multipliers of the weighers, and how current the snapshot of the hosts is."""

    filters: tuple[str, ...] = FILTERS
    """Names in their order; see docs/scheduler.md. Your own filter: by its entry point or its module."""
    weights: dict[str, float] = msgspec.field(default_factory=lambda: dict(WEIGHTS))
    """Multipliers of weighers that differ from the default. A negative one prefers low weights, zero disables."""
    jitter: float = 0.01
    """Random part of the weight, relative to a weigher's range. It distributes servers over equal hosts."""
    alternates: int = 8
    """Number of candidates in a plan."""
    default_zone: str = "nova"
    """The availability zone of hosts without a zone in their aggregates."""
    default_schedule_zone: str = ""
    """The availability zone of servers without a requested zone; empty: any zone."""
    refresh_seconds: float = 0.005
    """Maximum age in seconds of the snapshot for a plan. A plan without candidates is repeated with a new one."""
    liveness_seconds: float = 1.0
    """Seconds between two reads of the service heartbeats and of the running operations."""
    change_overlap_seconds: float = 2.0
    """Longest expected time in seconds from a transaction's change number to its commit (PostgreSQL)."""
    reload_seconds: float = 60.0
    """Seconds between two full reloads. Longer where a reload would take more than 1 % of the time."""
    proposal_seconds: float = 2.0
    """Seconds for which a proposed allocation counts as used, unless its claim shows sooner."""
    max_instances_per_host: int = 50
    """Default limit of the filter num_instances; aggregates may override it."""
    max_io_ops_per_host: int = 8
    """Default limit of the filter io_ops; aggregates may override it."""
    isolated_hosts: tuple[str, ...] = ()
    """For the filter isolated: hosts reserved for `isolated_images`."""
    isolated_images: tuple[str, ...] = ()
    """For the filter isolated: ids of images that run only on `isolated_hosts`."""
    restrict_isolated_hosts_to_isolated_images: bool = True
    """For the filter isolated: whether `isolated_hosts` reject other images."""
    aggregate_image_properties_isolation_namespace: str = ""
    """For the filter aggregate_image_properties: only keys with this prefix and the separator count."""
    aggregate_image_properties_isolation_separator: str = "."
    """The separator after the namespace prefix."""
    max_listed_hosts: int = 200
    """How many rejected hosts the diagnosis of a failure lists."""
