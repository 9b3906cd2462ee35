"""Descriptions of hosts, and their reports."""

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
    """A nested resource provider of the host, such as a NUMA cell or a GPU.

    Its name in placement is `<hypervisor>_<name>`. `parent` names a nested provider earlier in the list; None is the
    host itself.
    """

    name: str
    parent: str | None = None
    inventory: dict[str, Inventory] = {}
    traits: list[str] = []


class SharingProvider(Message, frozen=True, kw_only=True):
    """A sharing resource provider. Each host that uses it reports the same name and aggregate."""

    name: str
    aggregate: str
    inventory: dict[str, Inventory] = {}
    traits: list[str] = []


class HostFacts(Message, frozen=True, kw_only=True):
    """A host. Aggregates and operators may override the allocation ratios of its inventories.

    `booted_at` is in epoch seconds, and None from old agents.
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
    # Addresses at which other hosts reach this one, by purpose: "migration", "disks". Passed to them unchanged.
    addresses: dict[str, str] = {}
    # Whether the host needs network plans (ApplyNetwork).
    networked: bool = False
    agent_version: int = VERSION
    # The highest mark of a database from which the host has executed commands.
    incarnation: int = 0
    leases: int = 0


class Report(Message, frozen=True, kw_only=True):
    """A report that a host sends regularly, and at once when a guest's power state changes.

    `boot` identifies the start of the agent. `seconds` is the longest time until the next report.
    """

    host: str
    boot: str = ""
    seconds: float = 0.0
    guests: list[GuestState] = []
