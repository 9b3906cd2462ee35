"""What a host is, and what it says by itself."""

from __future__ import annotations

from typing import Any

from kilonova.hosts.messages.base import VERSION, Message
from kilonova.hosts.messages.guests import GuestState


class Inventory(Message, frozen=True, kw_only=True):
    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int
    step_size: int = 1
    allocation_ratio: float = 1.0


class NestedProvider(Message, frozen=True, kw_only=True):
    """A part of the host that gives resources of its own: a NUMA cell, a GPU.

    Placement calls it by the hypervisor's name, an underscore and this name. `parent` is the name of another nested
    provider that stands before it in the list; without one it is the host itself.
    """

    name: str
    parent: str | None = None
    inventory: dict[str, Inventory] = {}
    traits: list[str] = []


class SharingProvider(Message, frozen=True, kw_only=True):
    """What several hosts use, each of which tells of it by the same name and the same aggregate."""

    name: str
    aggregate: str
    inventory: dict[str, Inventory] = {}
    traits: list[str] = []


class HostFacts(Message, frozen=True, kw_only=True):
    """A host. The ratios in inventories are its wishes, which aggregates and operators may overrule.

    `booted_at` is in seconds since the epoch, and nothing from agents that do not tell.
    """

    host: str
    hypervisor_hostname: str
    hypervisor_type: str
    hypervisor_version: int
    host_ip: str
    cpu_info: dict[str, Any] = {}
    inventory: dict[str, Inventory] = {}
    traits: list[str] = []
    nested: list[NestedProvider] = []
    sharing: list[SharingProvider] = []
    booted_at: float | None = None
    # Where other hosts reach this one, by what for: "migration", "disks". Given to them as they are.
    addresses: dict[str, str] = {}
    # Whether it wants to be told of the networks of its guests (ApplyNetwork).
    networked: bool = False
    agent_version: int = VERSION


class Report(Message, frozen=True, kw_only=True):
    """What a host says by itself: regularly, and at once when a guest's power changes.

    `boot` is another one at each start of the agent; the next report comes after `seconds` at the latest.
    """

    host: str
    boot: str = ""
    seconds: float = 0.0
    guests: list[GuestState] = []
