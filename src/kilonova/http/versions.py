"""Declarations of microversions: each lists its changes to the version before, and every change can be undone.

Handlers, schemas and views are written in their newest form. `Api.compile` walks from the newest version down and
calls `undo`, so that all versions of all routes are in tables before the first request.
"""

from __future__ import annotations

import copy
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kilonova.http.schema import Schema
from kilonova.http.views import ANYTHING, Field, Value

Upgrade = Callable[[Any], object]
RequestBody = dict[str, dict[str, object]]
"""A body with one key, whose value is an object."""
SERVER_ACTION = "/servers/{server_id}/action"


@dataclass
class Draft:
    """A route at one version, while the compiler walks down through the versions."""

    exists: bool
    body: Schema | None
    query: Mapping[str, Schema] | None
    query_closed: bool
    status: int
    upgrades: tuple[Upgrade, ...]
    body_root: str = ""


@dataclass(frozen=True)
class Change:
    """A difference to the version before. `target` is a route's key, or empty."""

    target: str
    description: str

    def undo(self, draft: Draft) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Existence(Change):
    """The route begins or ends. `status_without` is the status in versions that know the path, but not the route."""

    exists_below: bool
    status_without: int = 404

    def undo(self, draft: Draft) -> None:
        draft.exists = self.exists_below


@dataclass(frozen=True)
class Body(Change):
    """A key of the body, by its dotted path. `before` is its schema in older versions, or None."""

    path: str
    before: Schema | None
    required_before: bool
    upgrade: Upgrade | None

    def undo(self, draft: Draft) -> None:
        if self.upgrade is not None:
            draft.upgrades = (self.upgrade, *draft.upgrades)
        path = ".".join(part for part in (draft.body_root, self.path) if part)
        if not path:
            draft.body = self.before
            return
        assert draft.body is not None, f"{self.target} has no body"
        draft.body = copy.deepcopy(draft.body)
        parent, key = _parent(draft.body, path)
        if self.before is None:
            if key not in parent["properties"]:
                raise ValueError(f"{self.target}: the newest body has no key {path}")
            del parent["properties"][key]
        else:
            parent["properties"][key] = self.before
        required = [name for name in parent.get("required", []) if name != key]
        if self.required_before:
            required.append(key)
        parent["required"] = required


@dataclass(frozen=True)
class Query(Change):
    keys: tuple[str, ...]
    before: Schema | None

    def undo(self, draft: Draft) -> None:
        query = dict(draft.query or {})
        for key in self.keys:
            if self.before is None:
                del query[key]
            else:
                query[key] = self.before
        draft.query = query


@dataclass(frozen=True)
class QueryCloses(Change):
    def undo(self, draft: Draft) -> None:
        draft.query_closed = False


@dataclass(frozen=True)
class Status(Change):
    before: int

    def undo(self, draft: Draft) -> None:
        draft.status = self.before


@dataclass(frozen=True)
class ViewField(Change):
    """A field of one or more views. `before` is the field in older versions, or None."""

    views: tuple[str, ...]
    fields: tuple[str, ...]
    before: Field | None

    def undo_fields(self, fields: dict[str, Field]) -> dict[str, Field]:
        fields = dict(fields)
        for name in self.fields:
            if self.before is not None:
                fields[name] = self.before
            elif name not in fields:
                raise ValueError(f"{self.description}: the newest view has no field {name}")
            else:
                del fields[name]
        return fields


class Behaviour(Change):
    """A difference that handlers implement: they check `ctx.has_behaviour`. `Api.behaviour` declares it."""

    def __init__(self, description: str) -> None:
        super().__init__("", description)


@dataclass(frozen=True)
class Microversion:
    """The changes of one version; `history` is its entry in the public version history."""

    number: str
    history: str | None
    changes: Sequence[Change]

    @property
    def minor(self) -> int:
        return int(self.number.split(".")[1])


# Functions for declarations


class route:
    def __init__(self, method: str, path: str) -> None:
        self.target = f"{method} {path}"

    def begins(self, *, status_below: int = 404) -> Change:
        return Existence(self.target, f"`{self.target}` begins", exists_below=False, status_without=status_below)

    def ends(self, *, status_above: int = 404) -> Change:
        return Existence(self.target, f"`{self.target}` ends", exists_below=True, status_without=status_above)


class request:
    """Changes of a route's body, or (with `action`) of an action's. Paths are dotted.

    `[]` after a key means the items of its list, and the key `{}` the members of an object with arbitrary keys.
    """

    def __init__(self, target: str, name: str | None = None) -> None:
        self.target = target
        self.name = name or f"`{target}`"

    def gains(self, path: str, *, upgrade: Upgrade | None = None) -> Change:
        return Body(self.target, f"{self.name} takes `{path}`", path, None, False, upgrade)

    def loses(self, path: str, *, schema: Schema, required: bool = False, upgrade: Upgrade | None = None) -> Change:
        return Body(self.target, f"{self.name} no longer takes `{path}`", path, schema, required, upgrade)

    def changes(
        self, path: str, *, before: Schema, required_before: bool = False, upgrade: Upgrade | None = None
    ) -> Change:
        description = f"{self.name} takes another form of `{path}`" if path else f"{self.name} takes another body"
        return Body(self.target, description, path, before, required_before, upgrade)


class action(request):
    def __init__(self, name: str, at: str = SERVER_ACTION) -> None:
        super().__init__(f"POST {at}#{name}", f"action `{name}`")

    def begins(self) -> Change:
        return Existence(self.target, f"{self.name} begins", exists_below=False)

    def ends(self) -> Change:
        return Existence(self.target, f"{self.name} ends", exists_below=True)


class query:
    def __init__(self, target: str) -> None:
        self.target = target

    def gains(self, *keys: str) -> Change:
        return Query(self.target, f"`{self.target}` takes query keys {_list(keys)}", keys, None)

    def loses(self, *keys: str, schema: Schema) -> Change:
        return Query(self.target, f"`{self.target}` no longer takes query keys {_list(keys)}", keys, schema)

    def changes(self, key: str, *, before: Schema) -> Change:
        return Query(self.target, f"`{self.target}` takes another form of query key `{key}`", (key,), before)

    def closes(self) -> Change:
        return QueryCloses(self.target, f"`{self.target}` refuses unknown query keys")


class response:
    def __init__(self, target: str) -> None:
        self.target = target

    def status(self, *, before: int) -> Change:
        return Status(self.target, f"`{self.target}` answers with another status (before: {before})", before)


class view:
    def __init__(self, *names: str) -> None:
        self.names = names
        self.shown_names = _list(names)

    def gains(self, *fields: str) -> Change:
        return ViewField("", f"view {self.shown_names} shows {_list(fields)}", self.names, fields, None)

    def loses(
        self,
        *fields: str,
        value: Value,
        schema: Schema = ANYTHING,
        policy: str | None = None,
        optional: bool = False,
    ) -> Change:
        before = Field(value, schema, policy, optional)
        return ViewField("", f"view {self.shown_names} no longer shows {_list(fields)}", self.names, fields, before)

    def changes(
        self,
        field: str,
        *,
        before: Value,
        schema: Schema = ANYTHING,
        policy: str | None = None,
        optional: bool = False,
    ) -> Change:
        form = Field(before, schema, policy, optional)
        return ViewField("", f"view {self.shown_names} shows another form of `{field}`", self.names, (field,), form)


def load(package: ModuleType) -> list[Microversion]:
    """All microversions of a package of `vX_NNN_*.py` files, oldest first."""
    found = [
        importlib.import_module(f"{package.__name__}.{module.name}").version
        for module in pkgutil.iter_modules(package.__path__)
        if module.name.startswith("v")
    ]
    return sorted(found, key=lambda version: version.minor)


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _parent(schema: Schema, path: str) -> tuple[Schema, str]:
    """The object schema that has the last key of a dotted path, and that key."""
    *steps, key = path.split(".")
    for step in steps:
        if step == "{}":
            (schema,) = schema["patternProperties"].values()
            continue
        is_list = step.endswith("[]")
        schema = schema["properties"][step.removesuffix("[]")]
        if is_list:
            schema = schema["items"]
    return schema, key
