"""What hosts tell of themselves: their own provider, those nested in it, and those they share with other hosts."""

from __future__ import annotations

import math
import re
import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

SHARES = "MISC_SHARES_VIA_AGGREGATE"

LARGEST = 2**31 - 1

_SPACE = uuids.UUID("5b0cbc1c-3d1f-5c19-8f60-2a0d4b1b6f0e")


class InventoryLike(Protocol):
    """What a host says it has of one class; the agents' own message has the same fields."""

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
    """A provider below the host's own, or below another nested one that is told before it."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def inventory(self) -> Mapping[str, InventoryLike]: ...
    @property
    def traits(self) -> Sequence[str]: ...


class SharingLike(Protocol):
    """A provider that several hosts use, all of which tell of it by the same name."""

    @property
    def name(self) -> str: ...
    @property
    def aggregate(self) -> str: ...
    @property
    def inventory(self) -> Mapping[str, InventoryLike]: ...
    @property
    def traits(self) -> Sequence[str]: ...


class Inventory(msgspec.Struct, frozen=True):
    """How much of one class there is. Without `max_unit` one consumer may have all of it."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float = 1.0


class ProviderFacts(msgspec.Struct, frozen=True):
    """A host without `flaw`. The names of nested providers are put behind its own."""

    uuid: str
    name: str
    inventory: Mapping[str, InventoryLike]
    traits: Sequence[str] = ()
    nested: Sequence[NestedLike] = ()
    sharing: Sequence[SharingLike] = ()


class Wanted(NamedTuple):
    """One provider as it is told."""

    uuid: str
    name: str
    parent: str | None
    inventory: Mapping[str, InventoryLike]
    traits: frozenset[str]
    aggregates: frozenset[str] = frozenset()


class Told:
    """Everything some hosts tell, by groups: the providers of one host, parents first, or one that is shared."""

    def __init__(self, hosts: Sequence[ProviderFacts]) -> None:
        self._sets: dict[tuple[str, ...], frozenset[str]] = {}
        self.groups: dict[str, list[Wanted]] = {host.uuid: self._host(host) for host in hosts}
        self.shares: dict[str, list[str]] = {}
        for host in hosts:
            for one in host.sharing:
                shared = self._shared(one)
                self.groups[shared.uuid] = [shared]
                self.shares.setdefault(host.uuid, []).append(shared.uuid)

    @property
    def aggregates(self) -> list[str]:
        """Those that the hosts share something in."""
        shared = {uuid for shares in self.shares.values() for uuid in shares}
        return sorted({aggregate for uuid in shared for one in self.groups[uuid] for aggregate in one.aggregates})

    def _host(self, host: ProviderFacts) -> list[Wanted]:
        joined = frozenset(one.aggregate for one in host.sharing)
        found = [Wanted(host.uuid, host.name, None, host.inventory, self._set(host.traits), joined)]
        for one in host.nested:
            parent = host.uuid if one.parent is None else child_uuid(host.uuid, one.parent)
            name = f"{host.name}_{one.name}"
            uuid = child_uuid(host.uuid, one.name)
            found.append(Wanted(uuid, name, parent, one.inventory, self._set(one.traits)))
        return found

    def _shared(self, one: SharingLike) -> Wanted:
        traits = self._set((*one.traits, SHARES))
        return Wanted(sharing_uuid(one.name), one.name, None, one.inventory, traits, frozenset((one.aggregate,)))

    def _set(self, names: Sequence[str]) -> frozenset[str]:
        """Hosts of a kind have the same traits: one set for all of them."""
        key = tuple(names)
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = frozenset(key)
        return found


def flaw(host: ProviderFacts) -> str | None:
    """Why a host that tells this cannot be written down, if so."""
    names: set[str | None] = {None}
    for one in host.nested:
        if one.name in names or not one.name:
            return f"two of its providers are named {one.name!r}"
        if one.parent not in names:
            return f"its provider {one.name!r} stands below {one.parent!r}, which is not told before it"
        names.add(one.name)
    parts: list[ProviderFacts | NestedLike | SharingLike] = [host, *host.nested, *host.sharing]
    for part in parts:
        if not (_sound_names.issuperset(part.inventory) and _sound_names.issuperset(part.traits)):
            for name in (*part.inventory, *part.traits):
                if not _NAME.fullmatch(name):
                    return f"{name[:80]!r} is the name of no class or trait"
                _sound_names.add(name)
        for name, amount in part.inventory.items():
            if not _is_sound(amount):
                return f"what it has of {name} makes no sense: {amount}"
    return None


_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_sound_names: set[str] = set()


def _is_sound(amount: InventoryLike) -> bool:
    most = amount.total if amount.max_unit is None else amount.max_unit
    return (
        1 <= amount.total <= LARGEST
        and 0 <= amount.reserved <= LARGEST
        and 1 <= amount.min_unit <= LARGEST
        and 1 <= most <= LARGEST
        and 1 <= amount.step_size <= LARGEST
        and 0 < amount.allocation_ratio < math.inf
    )


def child_uuid(host_uuid: str, name: str) -> str:
    """The same as long as the host is the same, whatever the host is called."""
    return str(uuids.uuid5(_SPACE, f"{host_uuid}/{name}"))


def sharing_uuid(name: str) -> str:
    """The same for all hosts that share it."""
    return str(uuids.uuid5(_SPACE, name))
