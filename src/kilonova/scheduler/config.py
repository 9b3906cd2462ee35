"""The scheduler's settings, as they stand in the configuration file under `[scheduler]`."""

from __future__ import annotations

import msgspec

FILTERS = ("compute_up", "zone", "requested_destination", "excluded", "traits", "capacity")
WEIGHTS = {"ram": 1.0, "cpu": 1.0, "disk": 1.0}


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scheduler: filters in their order, the weighers' multipliers, and how fresh its picture of the hosts is."""

    filters: tuple[str, ...] = FILTERS
    """In this order. A name with dots is a module of your own."""
    weights: dict[str, float] = msgspec.field(default_factory=lambda: dict(WEIGHTS))
    """Weigher to multiplier: positive spreads, negative packs, zero switches off."""
    jitter: float = 0.01
    """How far chance may reorder hosts, in parts of a weigher's range; it spreads equal hosts and several workers."""
    alternates: int = 8
    """How many candidates a plan names."""
    attempts: int = 10
    """How often `place` proposes again after losing all candidates to others."""
    default_zone: str = "nova"
    """The zone of hosts that no aggregate puts into one."""
    default_schedule_zone: str = ""
    """The zone of servers for which none is asked; empty: any."""
    refresh_every: float = 0.005
    """Plans closer together than this share one look at the database."""
    liveness_every: float = 1.0
    overlap: float = 2.0
    """Seconds that a transaction may take from drawing its change number to its commit without being overlooked."""
    reload_every: float = 60.0
    """A full reload runs this often, or so that it takes a hundredth of the time, whichever is rarer."""
    foresight: float = 2.0
    """Seconds for which a proposal is counted as if it were claimed, unless the claim shows sooner."""
    shown_hosts: int = 50
    """How many rejected hosts a diagnosis describes one by one."""
