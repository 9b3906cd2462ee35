"""The scheduler's settings, as they stand in the configuration file under `[scheduler]`."""

from __future__ import annotations

import msgspec

# First what a person asked for and can change, then what the operator laid down, then what is short.
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
    """The scheduler: filters in their order, the weighers' multipliers, and how fresh its picture of the hosts is."""

    filters: tuple[str, ...] = FILTERS
    """In this order; docs/scheduler.md names them all. One of your own by its entry point, or by its module."""
    weights: dict[str, float] = msgspec.field(default_factory=lambda: dict(WEIGHTS))
    """Weigher to multiplier, where it is not the usual one: the sign says which hosts come first, zero switches off."""
    jitter: float = 0.01
    """How far chance may reorder hosts, in parts of a weigher's range; it spreads equal hosts and several workers."""
    alternates: int = 8
    """How many candidates a plan names."""
    default_zone: str = "nova"
    """The zone of hosts that no aggregate puts into one."""
    default_schedule_zone: str = ""
    """The zone of servers for which none is asked; empty: any."""
    refresh_every: float = 0.005
    """Plans closer together than this share one look at the database."""
    liveness_every: float = 1.0
    """Seconds between two looks at which hosts are silent, and how many operations run where."""
    overlap: float = 2.0
    """Seconds that a transaction may take from drawing its change number to its commit without being overlooked."""
    reload_every: float = 60.0
    """A full reload runs this often, or so that it takes a hundredth of the time, whichever is rarer."""
    foresight: float = 2.0
    """Seconds for which a proposal is counted as if it were claimed, unless the claim shows sooner."""
    max_instances_per_host: int = 50
    """For the filter num_instances, unless an aggregate says otherwise."""
    max_io_ops_per_host: int = 8
    """For the filter io_ops, unless an aggregate says otherwise."""
    isolated_hosts: tuple[str, ...] = ()
    """For the filter isolated: hosts that are set aside for `isolated_images`."""
    isolated_images: tuple[str, ...] = ()
    """For the filter isolated: by their ids; they go to `isolated_hosts` alone."""
    restrict_isolated_hosts_to_isolated_images: bool = True
    """For the filter isolated: whether those hosts take no other images."""
    aggregate_image_properties_isolation_namespace: str = ""
    """For the filter aggregate_image_properties: only keys that begin with this and the separator count."""
    aggregate_image_properties_isolation_separator: str = "."
    """Stands between that and the rest of a key."""
    shown_hosts: int = 200
    """How many rejected hosts the diagnosis of a failure describes one by one."""
