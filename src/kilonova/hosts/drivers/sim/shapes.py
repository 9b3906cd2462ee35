"""Shapes of simulated hosts, read from a file: their inventories, traits, nested and sharing providers.

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

SHARES_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
MAX_PROVIDERS = 1000
_MAX_INTEGER = 2**31 - 1
_CUSTOM_NAME = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_AGGREGATE_NAMESPACE = uuids.UUID("0b6a3c1e-7c0f-5d8b-9e1d-51d0f0a3c7aa")


class ShapeError(ValueError):
    """The file is invalid. The text names the file and the key."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Amount(_Section, frozen=True, kw_only=True):
    """An inventory, with placement's field names."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float = 1.0


Amounts = dict[str, int | Amount]
# (key, what is wrong)
Errors = Iterator[tuple[str, str]]


class Nested(_Section, frozen=True, kw_only=True):
    """A nested provider, or `count` of them, whose names end in 0, 1, and so on."""

    name: str
    count: int | None = None
    inventory: Amounts = {}
    traits: list[str] = []
    nested: list[Nested] = []


class Sharing(_Section, frozen=True, kw_only=True):
    """A sharing provider of the listed hosts and shapes; of all hosts if none are listed."""

    name: str
    aggregate: str = ""
    hosts: list[str] = []
    shapes: list[str] = []
    inventory: Amounts = {}
    traits: list[str] = []

    def includes(self, host: str, shape: str) -> bool:
        if not self.hosts and not self.shapes:
            return True
        return shape in self.shapes or any(fnmatchcase(host, pattern) for pattern in self.hosts)

    def provider(self) -> SharingProvider:
        aggregate = self.aggregate or str(uuids.uuid5(_AGGREGATE_NAMESPACE, self.name))
        traits = sorted({*self.traits, SHARES_TRAIT})
        return SharingProvider(
            name=self.name, aggregate=aggregate, inventory=to_inventory(self.inventory), traits=traits
        )


class Shape(_Section, frozen=True, kw_only=True):
    """`hosts`: the number of hosts of this shape; None: all hosts without another shape."""

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
        """Return the nested providers, parents first."""
        return list(islice(_flatten(self.nested, None), MAX_PROVIDERS + 1))

    def total(self, *classes: str) -> int:
        """Return the total of these resource classes over all providers."""
        inventories = [to_inventory(self.inventory), *(provider.inventory for provider in self.providers())]
        return sum(found[name].total for found in inventories for name in classes if name in found)


class Shapes(_Section, frozen=True, kw_only=True):
    """The content of a shapes file."""

    shape: list[Shape] = []
    sharing: list[Sharing] = []

    @property
    def hosts(self) -> int:
        """Return the number of hosts that all shapes need."""
        return sum(1 if shape.hosts is None else shape.hosts for shape in self.shape)

    def assign(self, hosts: Sequence[str]) -> dict[str, Shape]:
        """Assign shapes to hosts, in the order of both. Surplus hosts get none."""
        unassigned = iter(hosts)
        assigned: dict[str, Shape] = {}
        for shape in self.shape:
            if shape.hosts is not None:
                assigned.update((host, shape) for _, host in zip(range(shape.hosts), unassigned, strict=False))
        default = next((shape for shape in self.shape if shape.hosts is None), None)
        if default is not None:
            assigned.update((host, default) for host in unassigned)
        return assigned

    def shared_by(self, host: str, shape: str) -> list[SharingProvider]:
        return [sharing.provider() for sharing in self.sharing if sharing.includes(host, shape)]


def load(path: Path) -> Shapes:
    """Read and check a shapes file. Raises ShapeError."""
    content = _read(path)
    try:
        shapes = msgspec.convert(content, Shapes)
    except msgspec.ValidationError as error:
        key, what = next(_amount_errors("", content), None) or _error_location(error)
        raise ShapeError(f"host shapes {path}: {f'{key}: ' if key else ''}{what}") from None
    for key, what in _check_shapes(shapes):
        raise ShapeError(f"host shapes {path}: {key}: {what}")
    return shapes


def arch_traits(arch: str) -> tuple[str, str]:
    return f"COMPUTE_ARCH_{arch.upper()}", f"HW_ARCH_{arch.upper()}"


def to_inventory(amounts: Mapping[str, int | Amount]) -> dict[str, Inventory]:
    """Convert to the inventory that hosts report. A plain number is the total."""
    inventory = {}
    for name, value in amounts.items():
        amount = Amount(total=value) if isinstance(value, int) else value
        inventory[name] = Inventory(
            total=amount.total,
            reserved=amount.reserved,
            min_unit=amount.min_unit,
            max_unit=amount.total if amount.max_unit is None else amount.max_unit,
            step_size=amount.step_size,
            allocation_ratio=amount.allocation_ratio,
        )
    return inventory


def _flatten(nested: Iterable[Nested], parent: str | None) -> Iterator[NestedProvider]:
    """Yield the providers, parents first. A name starts with the parent's name, so that it is unique on the host."""
    for entry in nested:
        for suffix in [""] if entry.count is None else map(str, range(entry.count)):
            name = f"{entry.name}{suffix}" if parent is None else f"{parent}_{entry.name}{suffix}"
            inventory = to_inventory(entry.inventory)
            yield NestedProvider(name=name, parent=parent, inventory=inventory, traits=sorted(set(entry.traits)))
            yield from _flatten(entry.nested, name)


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


def _error_location(error: msgspec.ValidationError) -> tuple[str, str]:
    what, _, where = str(error).partition(" - at ")
    return where.strip("`").removeprefix("$").removeprefix("."), what


def _amount_errors(key: str, content: Any) -> Errors:
    """Find inventories of a wrong type. msgspec's own error does not name the resource class."""
    if isinstance(content, list):
        for number, item in enumerate(content):
            yield from _amount_errors(f"{key}[{number}]", item)
    elif isinstance(content, dict):
        for name, value in content.items():
            item_key = f"{key}.{name}" if key else str(name)
            if key.endswith("inventory"):
                try:
                    msgspec.convert(value, int | Amount)
                except msgspec.ValidationError as error:
                    where, what = _error_location(error)
                    yield f"{item_key}.{where}" if where else item_key, what
            else:
                yield from _amount_errors(item_key, value)


# Checks beyond types.


def _check_shapes(shapes: Shapes) -> Errors:
    if not shapes.shape:
        yield "shape", "at least one shape is required"
    yield from _check_unique("shape", [shape.name for shape in shapes.shape])
    yield from _check_unique("sharing", [sharing.name for sharing in shapes.sharing])
    if sum(shape.hosts is None for shape in shapes.shape) > 1:
        yield "shape", "only one shape may omit `hosts`: it takes all remaining hosts"
    for number, shape in enumerate(shapes.shape):
        yield from _check_shape(f"shape[{number}]", shape)
    names = {shape.name for shape in shapes.shape}
    for number, sharing in enumerate(shapes.sharing):
        yield from _check_sharing(f"sharing[{number}]", sharing, names)


def _check_shape(key: str, shape: Shape) -> Errors:
    yield from _check_name(f"{key}.name", shape.name)
    if shape.hosts is not None and not 0 <= shape.hosts <= 100_000:
        yield f"{key}.hosts", f"{shape.hosts} is not between 0 and 100000"
    if not 0 <= shape.hypervisor_version <= _MAX_INTEGER:
        yield f"{key}.hypervisor_version", f"{shape.hypervisor_version} is not between 0 and {_MAX_INTEGER}"
    yield from _check_inventory(f"{key}.inventory", shape.inventory)
    if not all(trait in _standard_traits() for trait in arch_traits(shape.arch)):
        yield f"{key}.arch", f"{shape.arch!r} is not an architecture with standard traits"
    yield from _check_traits(f"{key}.traits", shape.traits)
    yield from _check_traits(f"{key}.without_traits", shape.without_traits)
    yield from _check_nested(f"{key}.nested", shape.nested)
    providers = shape.providers()
    if len(providers) > MAX_PROVIDERS:
        yield f"{key}.nested", f"more than {MAX_PROVIDERS} providers"
    yield from _check_unique(f"{key}.nested", [provider.name for provider in providers])
    if not shape.inventory and not any(provider.inventory for provider in providers):
        yield f"{key}.inventory", "neither the host nor its nested providers have an inventory"


def _check_nested(key: str, nested: list[Nested]) -> Errors:
    for number, entry in enumerate(nested):
        entry_key = f"{key}[{number}]"
        yield from _check_name(f"{entry_key}.name", entry.name)
        if entry.count is not None and not 1 <= entry.count <= MAX_PROVIDERS:
            yield f"{entry_key}.count", f"{entry.count} is not between 1 and {MAX_PROVIDERS}"
        yield from _check_inventory(f"{entry_key}.inventory", entry.inventory)
        yield from _check_traits(f"{entry_key}.traits", entry.traits)
        yield from _check_nested(f"{entry_key}.nested", entry.nested)


def _check_sharing(key: str, sharing: Sharing, shapes: set[str]) -> Errors:
    yield from _check_name(f"{key}.name", sharing.name)
    if sharing.aggregate and not ids.is_uuid(sharing.aggregate):
        yield f"{key}.aggregate", f"{sharing.aggregate!r} is not a uuid"
    for name in sharing.shapes:
        if name not in shapes:
            yield f"{key}.shapes", f"there is no shape {name!r}"
    if not sharing.inventory:
        yield f"{key}.inventory", "a sharing provider needs an inventory"
    yield from _check_inventory(f"{key}.inventory", sharing.inventory)
    yield from _check_traits(f"{key}.traits", sharing.traits)


def _check_name(key: str, name: str) -> Errors:
    if not _NAME.fullmatch(name):
        yield key, f"{name!r} is not a name: up to 64 letters, digits and _ . : -, a letter or digit first"


def _check_inventory(key: str, amounts: Mapping[str, int | Amount]) -> Errors:
    import os_resource_classes

    for name, inventory in to_inventory(amounts).items():
        class_key = f"{key}.{name}"
        if name not in os_resource_classes.STANDARDS and not _CUSTOM_NAME.fullmatch(name):
            yield class_key, "neither a standard resource class nor one that begins with CUSTOM_"
        for field, least in (("total", 1), ("reserved", 0), ("min_unit", 1), ("max_unit", 1), ("step_size", 1)):
            value = getattr(inventory, field)
            if not least <= value <= _MAX_INTEGER:
                yield f"{class_key}.{field}", f"{value} is not between {least} and {_MAX_INTEGER}"
        if inventory.reserved > inventory.total:
            yield f"{class_key}.reserved", f"{inventory.reserved} is more than the total of {inventory.total}"
        if inventory.min_unit > inventory.max_unit:
            yield f"{class_key}.min_unit", f"{inventory.min_unit} is more than the max_unit of {inventory.max_unit}"
        if not 0 < inventory.allocation_ratio < math.inf:
            yield f"{class_key}.allocation_ratio", f"{inventory.allocation_ratio} is not a ratio"


@cache
def _standard_traits() -> frozenset[str]:
    import os_traits

    return frozenset(os_traits.get_traits())


def _check_traits(key: str, traits: list[str]) -> Errors:
    for name in traits:
        if name not in _standard_traits() and not _CUSTOM_NAME.fullmatch(name):
            yield key, f"{name!r} is neither a standard trait nor one that begins with CUSTOM_"


def _check_unique(key: str, names: list[str]) -> Errors:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield key, f"the name {name!r} is used more than once"
