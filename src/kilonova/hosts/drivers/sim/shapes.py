"""Shapes of simulated hosts, read from a file: what each consists of, and what several of them share.

docs/host-shapes.md describes the file.
"""

from __future__ import annotations

import math
import re
import uuid as uuids
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kilonova import ids
from kilonova.hosts.messages import Inventory, NestedProvider, SharingProvider

SHARES = "MISC_SHARES_VIA_AGGREGATE"
MOST_PROVIDERS = 1000
_LARGEST = 2**31 - 1
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_AGGREGATES = uuids.UUID("0b6a3c1e-7c0f-5d8b-9e1d-51d0f0a3c7aa")


class ShapeError(ValueError):
    """What is wrong, and where: names the file and the key."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Amount(_Part, frozen=True, kw_only=True):
    """How much there is of a class, in placement's words."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float = 1.0


Amounts = dict[str, int | Amount]
Complaints = Iterator[tuple[str, str]]


class Nested(_Part, frozen=True, kw_only=True):
    """A part of a host, or `count` such parts, whose names end in 0, 1, and so on."""

    name: str
    count: int | None = None
    inventory: Amounts = {}
    traits: list[str] = []
    nested: list[Nested] = []


class Sharing(_Part, frozen=True, kw_only=True):
    """Something that hosts share: those whose name or shape is listed, or all."""

    name: str
    aggregate: str = ""
    hosts: list[str] = []
    shapes: list[str] = []
    inventory: Amounts = {}
    traits: list[str] = []

    def has(self, host: str, shape: str) -> bool:
        if not self.hosts and not self.shapes:
            return True
        return shape in self.shapes or any(fnmatchcase(host, pattern) for pattern in self.hosts)

    def provider(self) -> SharingProvider:
        aggregate = self.aggregate or str(uuids.uuid5(_AGGREGATES, self.name))
        traits = sorted({*self.traits, SHARES})
        return SharingProvider(
            name=self.name, aggregate=aggregate, inventory=inventory_of(self.inventory), traits=traits
        )


class Shape(_Part, frozen=True, kw_only=True):
    """`hosts` says how many hosts are of this shape; without it all that no other shape has."""

    name: str
    hosts: int | None = None
    inventory: Amounts = {}
    traits: list[str] = []
    without_traits: list[str] = []
    nested: list[Nested] = []
    arch: str = "x86_64"
    cpu_info: dict[str, Any] = {}
    hypervisor_type: str = ""
    hypervisor_version: int = 0

    def providers(self) -> list[NestedProvider]:
        """Everything that is nested, parents first."""
        return list(islice(_flattened(self.nested, None), MOST_PROVIDERS + 1))

    def total(self, *classes: str) -> int:
        """Of the whole host."""
        inventories = [inventory_of(self.inventory), *(part.inventory for part in self.providers())]
        return sum(found[name].total for found in inventories for name in classes if name in found)


class Shapes(_Part, frozen=True, kw_only=True):
    """A whole file."""

    shape: list[Shape] = []
    sharing: list[Sharing] = []

    @property
    def hosts(self) -> int:
        """How many hosts it takes to show every shape."""
        return sum(1 if shape.hosts is None else shape.hosts for shape in self.shape)

    def assign(self, hosts: Sequence[str]) -> dict[str, Shape]:
        """Which host has which shape, in the order of both. Hosts that are left over have none."""
        waiting = iter(hosts)
        assigned: dict[str, Shape] = {}
        for shape in self.shape:
            if shape.hosts is not None:
                assigned.update((host, shape) for _, host in zip(range(shape.hosts), waiting, strict=False))
        rest = next((shape for shape in self.shape if shape.hosts is None), None)
        if rest is not None:
            assigned.update((host, rest) for host in waiting)
        return assigned

    def shared_by(self, host: str, shape: str) -> list[SharingProvider]:
        return [one.provider() for one in self.sharing if one.has(host, shape)]


def load(path: Path) -> Shapes:
    """Raises ShapeError."""
    content = _read(path)
    try:
        shapes = msgspec.convert(content, Shapes)
    except msgspec.ValidationError as error:
        key, what = next(_wrong_amounts("", content), None) or _where(error)
        raise ShapeError(f"host shapes {path}: {f'{key}: ' if key else ''}{what}") from None
    for key, what in _complaints(shapes):
        raise ShapeError(f"host shapes {path}: {key}: {what}")
    return shapes


def arch_traits(arch: str) -> tuple[str, str]:
    return f"COMPUTE_ARCH_{arch.upper()}", f"HW_ARCH_{arch.upper()}"


def inventory_of(amounts: Mapping[str, int | Amount]) -> dict[str, Inventory]:
    """As hosts tell it. A number alone is the total."""
    found = {}
    for name, given in amounts.items():
        amount = Amount(total=given) if isinstance(given, int) else given
        found[name] = Inventory(
            total=amount.total,
            reserved=amount.reserved,
            min_unit=amount.min_unit,
            max_unit=amount.total if amount.max_unit is None else amount.max_unit,
            step_size=amount.step_size,
            allocation_ratio=amount.allocation_ratio,
        )
    return found


def _flattened(parts: Iterable[Nested], parent: str | None) -> Iterator[NestedProvider]:
    """The name of a part begins with that of what it is nested in, so that it is the only one of its name."""
    for part in parts:
        for ending in [""] if part.count is None else map(str, range(part.count)):
            name = f"{part.name}{ending}" if parent is None else f"{parent}_{part.name}{ending}"
            inventory = inventory_of(part.inventory)
            yield NestedProvider(name=name, parent=parent, inventory=inventory, traits=sorted(set(part.traits)))
            yield from _flattened(part.nested, name)


def _read(path: Path) -> Any:
    import tomllib

    try:
        text = path.read_text()
    except OSError as error:
        raise ShapeError(f"host shapes {path}: {error.strerror}") from None
    except ValueError:
        raise ShapeError(f"host shapes {path}: not a text file") from None
    if path.suffix in (".yaml", ".yml"):
        return _read_yaml(path, text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ShapeError(f"host shapes {path}: {error}") from None


def _read_yaml(path: Path, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (at line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise ShapeError(f"host shapes {path}: {getattr(error, 'problem', None) or 'not YAML'}{where}") from None


def _where(error: msgspec.ValidationError) -> tuple[str, str]:
    what, _, where = str(error).partition(" - at ")
    return where.strip("`").removeprefix("$").removeprefix("."), what


def _wrong_amounts(key: str, content: Any) -> Complaints:
    """Inventories that are not even of the right type: of these msgspec does not tell the class."""
    if isinstance(content, list):
        for number, one in enumerate(content):
            yield from _wrong_amounts(f"{key}[{number}]", one)
    elif isinstance(content, dict):
        for name, value in content.items():
            here = f"{key}.{name}" if key else str(name)
            if key.endswith("inventory"):
                try:
                    msgspec.convert(value, int | Amount)
                except msgspec.ValidationError as error:
                    where, what = _where(error)
                    yield f"{here}.{where}" if where else here, what
            else:
                yield from _wrong_amounts(here, value)


# What types alone do not say. Each complaint comes with the key it is about.


def _complaints(shapes: Shapes) -> Complaints:
    if not shapes.shape:
        yield "shape", "a file of shapes has at least one"
    yield from _twice("shape", [shape.name for shape in shapes.shape])
    yield from _twice("sharing", [one.name for one in shapes.sharing])
    if sum(shape.hosts is None for shape in shapes.shape) > 1:
        yield "shape", "only one shape can do without `hosts`: it takes all that are left"
    for number, shape in enumerate(shapes.shape):
        yield from _of_shape(f"shape[{number}]", shape)
    names = {shape.name for shape in shapes.shape}
    for number, one in enumerate(shapes.sharing):
        yield from _of_sharing(f"sharing[{number}]", one, names)


def _of_shape(key: str, shape: Shape) -> Complaints:
    yield from _of_name(f"{key}.name", shape.name)
    if shape.hosts is not None and not 0 <= shape.hosts <= 100_000:
        yield f"{key}.hosts", f"{shape.hosts} is not between 0 and 100000"
    if not 0 <= shape.hypervisor_version <= _LARGEST:
        yield f"{key}.hypervisor_version", f"{shape.hypervisor_version} is not between 0 and {_LARGEST}"
    yield from _of_inventory(f"{key}.inventory", shape.inventory)
    if not all(trait in _standard_traits() for trait in arch_traits(shape.arch)):
        yield f"{key}.arch", f"{shape.arch!r} is not an architecture that traits are known for"
    yield from _of_traits(f"{key}.traits", shape.traits)
    yield from _of_traits(f"{key}.without_traits", shape.without_traits)
    yield from _of_nested(f"{key}.nested", shape.nested)
    providers = shape.providers()
    if len(providers) > MOST_PROVIDERS:
        yield f"{key}.nested", f"these are more than {MOST_PROVIDERS} providers"
    yield from _twice(f"{key}.nested", [provider.name for provider in providers])
    if not shape.inventory and not any(provider.inventory for provider in providers):
        yield f"{key}.inventory", "the host has nothing at all"


def _of_nested(key: str, nested: list[Nested]) -> Complaints:
    for number, part in enumerate(nested):
        here = f"{key}[{number}]"
        yield from _of_name(f"{here}.name", part.name)
        if part.count is not None and not 1 <= part.count <= MOST_PROVIDERS:
            yield f"{here}.count", f"{part.count} is not between 1 and {MOST_PROVIDERS}"
        yield from _of_inventory(f"{here}.inventory", part.inventory)
        yield from _of_traits(f"{here}.traits", part.traits)
        yield from _of_nested(f"{here}.nested", part.nested)


def _of_sharing(key: str, one: Sharing, shapes: set[str]) -> Complaints:
    yield from _of_name(f"{key}.name", one.name)
    if one.aggregate and not ids.is_uuid(one.aggregate):
        yield f"{key}.aggregate", f"{one.aggregate!r} is not a uuid"
    for name in one.shapes:
        if name not in shapes:
            yield f"{key}.shapes", f"there is no shape {name!r}"
    if not one.inventory:
        yield f"{key}.inventory", "nothing to share"
    yield from _of_inventory(f"{key}.inventory", one.inventory)
    yield from _of_traits(f"{key}.traits", one.traits)


def _of_name(key: str, name: str) -> Complaints:
    if not _PART.fullmatch(name):
        yield key, f"{name!r} is no name: letters, digits and _ . : - up to 64, a letter or digit first"


def _of_inventory(key: str, amounts: Mapping[str, int | Amount]) -> Complaints:
    import os_resource_classes

    for name, inventory in inventory_of(amounts).items():
        here = f"{key}.{name}"
        if name not in os_resource_classes.STANDARDS and not _CUSTOM.fullmatch(name):
            yield here, "neither a standard resource class nor one that begins with CUSTOM_"
        for field, least in (("total", 1), ("reserved", 0), ("min_unit", 1), ("max_unit", 1), ("step_size", 1)):
            value = getattr(inventory, field)
            if not least <= value <= _LARGEST:
                yield f"{here}.{field}", f"{value} is not between {least} and {_LARGEST}"
        if inventory.reserved > inventory.total:
            yield f"{here}.reserved", f"{inventory.reserved} is more than the total of {inventory.total}"
        if inventory.min_unit > inventory.max_unit:
            yield f"{here}.min_unit", f"{inventory.min_unit} is more than the max_unit of {inventory.max_unit}"
        if not 0 < inventory.allocation_ratio < math.inf:
            yield f"{here}.allocation_ratio", f"{inventory.allocation_ratio} is not a ratio"


@cache
def _standard_traits() -> frozenset[str]:
    import os_traits

    return frozenset(os_traits.get_traits())


def _of_traits(key: str, traits: list[str]) -> Complaints:
    for name in traits:
        if name not in _standard_traits() and not _CUSTOM.fullmatch(name):
            yield key, f"{name!r} is neither a standard trait nor one that begins with CUSTOM_"


def _twice(key: str, names: list[str]) -> Complaints:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield key, f"two of them are named {name!r}"
