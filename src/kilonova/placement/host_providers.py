"""The resource providers that hosts report: root, nested and sharing providers."""

from __future__ import annotations

import math
import re
import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"

MAX_AMOUNT = 2**31 - 1

_UUID_NAMESPACE = uuids.UUID("5b0cbc1c-3d1f-5c19-8f60-2a0d4b1b6f0e")


class InventoryLike(Protocol):
    """A reported inventory. The agents' message has the same fields."""

    @property
    def total(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def min_unit(self) -> int: ...
    @property
    def max_unit(self) -> int | None: ...
    @property
    def step_size(self) -> int: ...
    @property
    def allocation_ratio(self) -> float: ...


class NestedLike(Protocol):
    """A child of the host's root provider, or of a nested provider that precedes it in the report."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def inventory(self) -> Mapping[str, InventoryLike]: ...
    @property
    def traits(self) -> Sequence[str]: ...


class SharingLike(Protocol):
    """A provider that several hosts share. All of them report it by the same name."""

    @property
    def name(self) -> str: ...
    @property
    def aggregate(self) -> str: ...
    @property
    def inventory(self) -> Mapping[str, InventoryLike]: ...
    @property
    def traits(self) -> Sequence[str]: ...


class Inventory(msgspec.Struct, frozen=True):
    """An inventory of one class. Without `max_unit`, a single allocation may use all of it."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float = 1.0


class HostProviders(msgspec.Struct, frozen=True):
    """A host's report. The name of a nested provider is appended to the host's name."""

    uuid: str
    name: str
    inventory: Mapping[str, InventoryLike]
    traits: Sequence[str] = ()
    nested: Sequence[NestedLike] = ()
    sharing: Sequence[SharingLike] = ()


class ReportedProvider(NamedTuple):
    """A provider as a host reports it."""

    uuid: str
    name: str
    parent: str | None
    inventory: Mapping[str, InventoryLike]
    traits: frozenset[str]
    aggregates: frozenset[str] = frozenset()


class ReportedProviders:
    """The reports of several hosts.

    `trees` has the providers of each host, parents first, by the uuid of the host's root provider. A sharing provider
    is a tree of its own.
    """

    def __init__(self, hosts: Sequence[HostProviders]) -> None:
        self._interned_sets: dict[tuple[str, ...], frozenset[str]] = {}
        self.trees: dict[str, list[ReportedProvider]] = {host.uuid: self._tree(host) for host in hosts}
        self.sharing_by_host: dict[str, list[str]] = {}
        for host in hosts:
            for sharing in host.sharing:
                shared = self._sharing_provider(sharing)
                self.trees[shared.uuid] = [shared]
                self.sharing_by_host.setdefault(host.uuid, []).append(shared.uuid)

    @property
    def aggregates(self) -> list[str]:
        """The aggregates of the sharing providers."""
        found: set[str] = set()
        for sharing in self.sharing_by_host.values():
            found.update(aggregate for uuid in sharing for aggregate in self.trees[uuid][0].aggregates)
        return sorted(found)

    def _tree(self, host: HostProviders) -> list[ReportedProvider]:
        joined = frozenset(one.aggregate for one in host.sharing)
        found = [ReportedProvider(host.uuid, host.name, None, host.inventory, self._interned(host.traits), joined)]
        for one in host.nested:
            parent = host.uuid if one.parent is None else child_uuid(host.uuid, one.parent)
            name = f"{host.name}_{one.name}"
            uuid = child_uuid(host.uuid, one.name)
            found.append(ReportedProvider(uuid, name, parent, one.inventory, self._interned(one.traits)))
        return found

    def _sharing_provider(self, one: SharingLike) -> ReportedProvider:
        traits = self._interned((*one.traits, SHARING_TRAIT))
        return ReportedProvider(
            sharing_uuid(one.name), one.name, None, one.inventory, traits, frozenset((one.aggregate,))
        )

    def _interned(self, names: Sequence[str]) -> frozenset[str]:
        """An interned set: many hosts have the same traits."""
        key = tuple(names)
        found = self._interned_sets.get(key)
        if found is None:
            found = self._interned_sets[key] = frozenset(key)
        return found


def validation_error(host: HostProviders) -> str | None:
    """Why the report is invalid; None if it is valid."""
    names: set[str | None] = {None}
    for one in host.nested:
        if one.name in names or not one.name:
            return f"nested provider names must be unique and not empty: {one.name!r}"
        if one.parent not in names:
            return f"the parent {one.parent!r} of nested provider {one.name!r} does not precede it"
        names.add(one.name)
    for shared in host.sharing:
        if "/" in shared.name:
            # Otherwise its uuid could be that of another host's nested provider.
            return f"the name of a sharing provider contains a slash: {shared.name[:80]!r}"
    providers: list[HostProviders | NestedLike | SharingLike] = [host, *host.nested, *host.sharing]
    for provider in providers:
        if not (_valid_names.issuperset(provider.inventory) and _valid_names.issuperset(provider.traits)):
            if len(_valid_names) > MAX_VALID_NAMES:
                _valid_names.clear()
            for name in (*provider.inventory, *provider.traits):
                if not _NAME.fullmatch(name):
                    return f"{name[:80]!r} is not a valid name of a class or trait"
                _valid_names.add(name)
        for name, amount in provider.inventory.items():
            if not _is_valid(amount):
                return f"the inventory of {name} is invalid: {amount}"
    return None


_NAME = re.compile(r"[A-Z0-9_]{1,255}")
# Hosts choose the names.
MAX_VALID_NAMES = 10_000
_valid_names: set[str] = set()


def _is_valid(amount: InventoryLike) -> bool:
    most = amount.total if amount.max_unit is None else amount.max_unit
    return (
        1 <= amount.total <= MAX_AMOUNT
        and 0 <= amount.reserved <= MAX_AMOUNT
        and 1 <= amount.min_unit <= MAX_AMOUNT
        and 1 <= most <= MAX_AMOUNT
        and 1 <= amount.step_size <= MAX_AMOUNT
        and 0 < amount.allocation_ratio < math.inf
    )


def child_uuid(host_uuid: str, name: str) -> str:
    """The uuid of a nested provider. It does not depend on the host's name."""
    return str(uuids.uuid5(_UUID_NAMESPACE, f"{host_uuid}/{name}"))


def sharing_uuid(name: str) -> str:
    """The uuid of a sharing provider, which is the same for all hosts."""
    return str(uuids.uuid5(_UUID_NAMESPACE, name))
