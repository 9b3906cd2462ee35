"""An API: its routes, actions and views, compiled with its microversions into one table per route."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kilonova.http.context import Answer, Context
from kilonova.http.errors import BadRequest, HttpError, VersionNotAcceptable
from kilonova.http.router import Router
from kilonova.http.schema import Schema, Validator
from kilonova.http.versions import (
    SERVER_ACTION,
    Behaviour,
    Draft,
    Existence,
    Microversion,
    Upgrade,
    ViewField,
)
from kilonova.http.views import View
from kilonova.http.words import WORDS, Words

Handler = Callable[..., Awaitable[Answer | None]]
Fault = Callable[[HttpError, str], Any]
VersionedFault = Callable[[HttpError, Context], Any]
_VERSION = re.compile(r"([1-9]\d*)\.(0|[1-9]\d*)")


class Form:
    """What one route accepts and answers in one span of versions."""

    __slots__ = ("body", "query", "query_closed", "query_keys", "query_open", "query_patterns", "status", "upgrades")

    def __init__(self, draft: Draft) -> None:
        self.body = Validator(draft.body) if draft.body is not None else None
        self.query_keys = dict(draft.query or {})
        # The key "*" stands for every other key: APIs that filter by properties of the users' own naming.
        other = self.query_keys.pop("*", None)
        self.query_open = other is not None
        # Keys that are regular expressions stand for all the keys they match.
        likenesses = {key: self.query_keys.pop(key) for key in list(self.query_keys) if key.startswith("^")}
        self.query_patterns = tuple(re.compile(key) for key in sorted(likenesses))
        self.query_closed = draft.query_closed
        known = {key: _values(schema) for key, schema in self.query_keys.items()}
        alike = {key: _values(schema) for key, schema in likenesses.items()}
        unknown = {"additionalProperties": _values(other)} if other is not None else {}
        self.query = Validator({"type": "object", "properties": known, "patternProperties": alike, **unknown})
        self.status = draft.status
        self.upgrades: tuple[Upgrade, ...] = draft.upgrades

    def takes(self, key: str) -> bool:
        """Whether the query may have this key."""
        return key in self.query_keys or self.query_open or any(like.fullmatch(key) for like in self.query_patterns)


def multi(schema: Schema) -> Schema:
    """A query key that may stand several times."""
    return {"multi": True, **schema}


def _values(schema: Schema) -> Schema:
    schema = dict(schema)
    many = schema.pop("multi", False)
    return {"type": "array", "items": schema, **({} if many else {"maxItems": 1})}


@dataclass
class Route:
    """One method and path (or one action of it) in its newest form.

    `shows` is for the documents: the key of the answer (none if it is the view itself), the view, and whether it is
    a list. `also` are other statuses of success, which the handler gives itself, without a body.
    `subject` raises if what the path names is not there. It is asked only where the body is wrong, for APIs whose
    callers are told of the missing thing first. `status_below` answers who asks for it before its first version.
    """

    method: str
    path: str
    handler: Handler
    policy: str | None = None
    checks: Sequence[str] = ()
    body: Schema | None = None
    query: dict[str, Schema] | None = None
    status: int = 200
    public: bool = False
    stream: bool = False
    shows: tuple[str, str, bool] | None = None
    # Whether the handler heeds the header of `kilonova.http.dry_run`; a route that does not refuses it.
    dry_run: bool = False
    action: str | None = None
    also: Sequence[int] = ()
    subject: Handler | None = None
    status_below: int = 404
    # The key of the route that it repeats at another path: versions change both alike.
    repeats: str = ""
    table: list[Form | None] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}" + (f"#{self.action}" if self.action else "")

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().split("\n")[0]


class Actions:
    """The actions of one `…/action` path, told apart by the single key of the body."""

    def __init__(self) -> None:
        self.by_name: dict[str, Route] = {}


class Api:
    """`prefix` is where it is mounted; `roots` are path segments like `v2.1` that its routes stand below.

    `strict` is for APIs that judge a request in this order: does it take JSON (406), may the caller do this (403),
    is the body said to be JSON (415), is it right (400). Their paths are known (405) at every version.
    Without `trailing_slash` a path that ends in one is that of a thing with an empty name, which does not exist.
    """

    def __init__(
        self,
        name: str,
        *,
        prefix: str,
        errors: Fault,
        major: int = 0,
        low: int = 0,
        high: int = 0,
        roots: Sequence[str] = (),
        frozen_roots: Sequence[str] = (),
        legacy_header: str | None = None,
        request_id_header: str | None = None,
        project_in_path: bool = False,
        body_limit: int | None = None,
        versioned_errors: VersionedFault | None = None,
        version_header: str = "OpenStack-API-Version",
        version_pattern: re.Pattern[str] = _VERSION,
        strict: bool = False,
        trailing_slash: bool = True,
        words: Words = WORDS,
    ) -> None:
        self.name = name
        self.prefix = prefix
        self.errors = errors
        self.versioned_errors = versioned_errors
        self.version_header, self.version_pattern = version_header, version_pattern
        self.strict = strict
        self.trailing_slash = trailing_slash
        self.words = words
        self.major, self.low, self.high = major, low, high
        self.roots, self.frozen_roots = tuple(roots), tuple(frozen_roots)
        self.legacy_header = legacy_header
        self.request_id_header = request_id_header
        self.project_in_path = project_in_path
        # None: the configured one.
        self.body_limit = body_limit
        self.router: Router[Route | Actions] = Router()
        self.documents: Router[Route] = Router()
        self.pages: dict[str, Route] = {}
        self.fallback: Handler | None = None
        self.routes: dict[str, Route] = {}
        self.actions: dict[str, Actions] = {}
        self.views: dict[str, View] = {}
        self.microversions: list[Microversion] = []
        self.behaviours_at: dict[int, frozenset[str]] = {}
        self.compile([])

    # Declaring

    def route(self, method: str, path: str, **options: Any) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            declared = Route(method, path, handler, **options)
            self.router.add(method, path, declared)
            self._keep(declared)
            return handler

        return declare

    def action(self, name: str, at: str = SERVER_ACTION, **options: Any) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            declared = Route("POST", at, handler, action=name, **options)
            declared.body = {
                "type": "object",
                "properties": {name: options.get("body", {"type": "null"})},
                "required": [name],
                "additionalProperties": False,
            }
            self._place_action(declared)
            self._keep(declared)
            return handler

        return declare

    def repeat(self, key: str, path: str) -> str:
        """Have a route, or an action, at another path too. Returns its key there."""
        declared = replace(self.routes[key], path=path, repeats=key, table=[])
        if declared.action is None:
            self.router.add(declared.method, path, declared)
        else:
            self._place_action(declared)
        self._keep(declared)
        return declared.key

    def document(self, method: str, path: str, **options: Any) -> Callable[[Handler], Handler]:
        """A version document: below no root, for everybody."""

        def declare(handler: Handler) -> Handler:
            declared = Route(method, path, handler, public=True, **options)
            self.documents.add(method, path, declared)
            self.pages[declared.key] = declared
            declared.table = [Form(_draft(declared))] * (self.high - self.low + 1)
            return handler

        return declare

    def view(self, view: View) -> View:
        if view.name in self.views:
            raise ValueError(f"view {view.name} is declared twice")
        self.views[view.name] = view
        return view

    def _place_action(self, declared: Route) -> None:
        assert declared.action is not None
        if declared.path not in self.actions:
            self.actions[declared.path] = Actions()
            self.router.add("POST", declared.path, self.actions[declared.path])
        self.actions[declared.path].by_name[declared.action] = declared

    def _keep(self, declared: Route) -> None:
        if declared.key in self.routes:
            raise ValueError(f"{declared.key} is declared twice")
        self.routes[declared.key] = declared

    # Compiling

    def compile(self, microversions: Sequence[Microversion]) -> None:
        """Fill every table, from the newest version down."""
        self.microversions = sorted(microversions, key=lambda version: version.minor)
        by_minor = {version.minor: version for version in self.microversions}
        self._check_targets()
        self._compile_behaviours()
        for declared in self.routes.values():
            self._compile_route(declared, by_minor)
        for shown in self.views.values():
            self._compile_view(shown, by_minor)

    def _check_targets(self) -> None:
        for declared in self.routes.values():
            if declared.shows is not None and declared.shows[1] not in self.views:
                raise ValueError(f"{declared.key} shows no view {declared.shows[1]}")
        for version in self.microversions:
            for change in version.changes:
                if change.target and change.target not in self.routes:
                    raise ValueError(f"{version.number}: no route {change.target}")
                if isinstance(change, ViewField):
                    for name in change.views:
                        if name not in self.views:
                            raise ValueError(f"{version.number}: no view {name}")

    def _compile_behaviours(self) -> None:
        names: set[str] = set()
        by_minor = {version.minor: version for version in self.microversions}
        for minor in range(self.low, self.high + 1):
            if minor in by_minor:
                names |= {c.name for c in by_minor[minor].changes if isinstance(c, Behaviour)}
            self.behaviours_at[minor] = frozenset(names)

    def _compile_route(self, declared: Route, by_minor: Mapping[int, Microversion]) -> None:
        draft = _draft(declared)
        draft.exists = self._lasts(declared)
        form: Form | None = None
        table: list[Form | None] = []
        for minor in range(self.high, self.low - 1, -1):
            if draft.exists and form is None:
                form = Form(draft)
            table.append(form if draft.exists else None)
            version = by_minor.get(minor)
            if version is not None:
                names = (declared.key, declared.repeats)
                touching = [change for change in version.changes if change.target and change.target in names]
                for change in touching:
                    change.undo(draft)
                    if isinstance(change, Existence):
                        declared.status_below = change.status_below
                if touching:
                    form = None
        declared.table = table[::-1]

    def _lasts(self, declared: Route) -> bool:
        """Whether the newest version has the route: it does unless the last word on it is that it ends."""
        for version in reversed(self.microversions):
            for change in reversed(version.changes):
                if isinstance(change, Existence) and change.target == declared.key:
                    return not change.exists_below
        return True

    def _compile_view(self, shown: View, by_minor: Mapping[int, Microversion]) -> None:
        fields = shown.fields
        table = []
        for minor in range(self.high, self.low - 1, -1):
            table.append(fields)
            version = by_minor.get(minor)
            for change in version.changes if version else ():
                if isinstance(change, ViewField) and shown.name in change.views:
                    fields = change.undo_fields(fields)
        shown.low = self.low
        shown.table = table[::-1]

    # Negotiating

    def negotiate(self, headers: Mapping[str, str]) -> int:
        """The minor version asked for; none asked for is the lowest."""
        if not self.major:
            return self.low
        asked = self._asked(headers)
        if asked is None:
            return self.low
        if asked == "latest":
            return self.high
        numbers = self.version_pattern.fullmatch(asked)
        if numbers is None:
            raise BadRequest(self.words.version_malformed(asked[:40]))
        # Nine digits are enough to be out of range, and endless ones are more than `int` takes.
        major, minor = int(numbers[1][:9]), int(numbers[2][:9])
        if major != self.major or not self.low <= minor <= self.high:
            lowest, highest = f"{self.major}.{self.low}", f"{self.major}.{self.high}"
            raise VersionNotAcceptable(self.words.version_unknown(asked[:40], lowest, highest))
        return minor

    def _asked(self, headers: Mapping[str, str]) -> str | None:
        for entry in headers.get("openstack-api-version", "").split(","):
            service, _, number = entry.strip().partition(" ")
            if service.lower() == self.name:
                return number.strip()
        return headers.get(self.legacy_header.lower()) if self.legacy_header else None

    def version_headers(self, minor: int) -> dict[str, str]:
        if not self.major:
            return {}
        number = f"{self.major}.{minor}"
        headers = {self.version_header: f"{self.name} {number}", "Vary": self.version_header}
        if self.legacy_header:
            headers[self.legacy_header] = number
            headers["Vary"] += f", {self.legacy_header}"
        return headers


def _draft(declared: Route) -> Draft:
    return Draft(
        exists=True,
        body=declared.body,
        query=declared.query,
        query_closed=declared.query is not None,
        status=declared.status,
        upgrades=(),
        body_root=declared.action or "",
    )
