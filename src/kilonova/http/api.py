"""Declares an API: its routes, actions and views, compiled with its microversions into one table per route."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

from kilonova.http.context import Context, Response
from kilonova.http.error_messages import DEFAULT_MESSAGES, ErrorMessages
from kilonova.http.errors import BadRequest, HttpError, VersionNotAcceptable
from kilonova.http.media_types import JSON
from kilonova.http.router import Router
from kilonova.http.schema import Schema, Validator
from kilonova.http.versions import SERVER_ACTION, Behaviour, Draft, Existence, Microversion, Upgrade, ViewField
from kilonova.http.views import View

Handler = Callable[..., Awaitable[Response | None]]
Fault = Callable[[HttpError, str], object]
VersionedFault = Callable[[HttpError, Context], object]
_VERSION = re.compile(r"([1-9]\d*)\.(0|[1-9]\d*)")


class RouteVersion:
    """Schemas and status of one route in a range of microversions."""

    __slots__ = ("body", "query", "query_closed", "query_keys", "query_open", "query_patterns", "status", "upgrades")

    def __init__(self, draft: Draft) -> None:
        self.body = Validator(draft.body) if draft.body is not None else None
        self.query_keys = dict(draft.query or {})
        # The key "*" accepts every other key, for APIs that filter by properties that users name.
        other = self.query_keys.pop("*", None)
        self.query_open = other is not None
        # A key that starts with "^" is a regular expression and accepts all keys that it matches.
        patterns = {key: self.query_keys.pop(key) for key in list(self.query_keys) if key.startswith("^")}
        self.query_patterns = tuple(re.compile(key) for key in sorted(patterns))
        self.query_closed = draft.query_closed
        known = {key: _values(schema) for key, schema in self.query_keys.items()}
        matched = {key: _values(schema) for key, schema in patterns.items()}
        unknown = {"additionalProperties": _values(other)} if other is not None else {}
        self.query = Validator({"type": "object", "properties": known, "patternProperties": matched, **unknown})
        self.status = draft.status
        self.upgrades: tuple[Upgrade, ...] = draft.upgrades

    def accepts_query_key(self, key: str) -> bool:
        return key in self.query_keys or self.query_open or any(known.fullmatch(key) for known in self.query_patterns)


def multi(schema: Schema) -> Schema:
    """The schema of a query key that may be repeated: all its values count."""
    return {"multi": True, **schema}


def repeatable(query: Mapping[str, Schema]) -> dict[str, Schema]:
    """Query keys that may be repeated: the last value counts."""
    return {key: {"repeatable": True, **schema} for key, schema in query.items()}


def _values(schema: Schema) -> Schema:
    many = schema.get("multi") or schema.get("repeatable")
    schema = {key: value for key, value in schema.items() if key not in ("multi", "repeatable")}
    return {"type": "array", "items": schema, **({} if many else {"maxItems": 1})}


@dataclass
class Route:
    """A method and path, or an action of a path, in its newest form.

    `shows` documents the response: its key (empty if the body is the view itself), the view, and whether it is a list.
    `other_statuses` are further success statuses, which the handler sets itself, without a body.
    `check_exists` raises if the resource in the path does not exist. It runs only if the body is invalid, for APIs
    that report the missing resource first. `status_below` is the status before the route's first version, and
    `status_above` the one after its last.

    A route says who may use it, else it is refused. `policy` is the rule that is checked before the handler runs, and
    `checks` are the rules that the handler checks. `authenticated`: everybody with a valid token; `checks` then decide
    only about parts of the request and response.
    `public`: everybody, even without a token. `ticket`: hosts without a token; the handler checks their ticket.
    """

    method: str
    path: str
    handler: Handler
    policy: str | None = None
    checks: Sequence[str] = ()
    body: Schema | None = None
    query: Mapping[str, Schema] | None = None
    status: int = 200
    authenticated: bool = False
    public: bool = False
    ticket: bool = False
    # Whether tokens with access rules may use the route without a rule for it.
    needs_no_access_rule: bool = False
    stream: bool = False
    shows: tuple[str, str, bool] | None = None
    # Whether the handler supports dry runs; other routes refuse the header of `kilonova.http.dry_run`.
    dry_run: bool = False
    action: str | None = None
    other_statuses: Sequence[int] = ()
    check_exists: Handler | None = None
    status_below: int = 404
    status_above: int = 404
    # The key of the route that this one serves at another path. Microversions change both.
    alias_of: str = ""
    versions: list[RouteVersion | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        by_rules = bool(self.policy or (self.checks and not self.authenticated))
        if [by_rules, self.authenticated, self.public, self.ticket].count(True) != 1:
            raise ValueError(f"{self.key} needs either rules (policy, checks), or one of authenticated, public, ticket")

    @property
    def needs_token(self) -> bool:
        return not (self.public or self.ticket)

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}" + (f"#{self.action}" if self.action else "")

    def status_without(self, place: int) -> int:
        """The status in a version that does not have the route."""
        return self.status_below if any(self.versions[place:]) else self.status_above

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().split("\n")[0]


class RouteOptions(TypedDict, total=False):
    """Arguments of a declaration. They are the attributes of `Route`."""

    policy: str
    checks: Sequence[str]
    body: Schema
    query: Mapping[str, Schema]
    status: int
    authenticated: bool
    public: bool
    ticket: bool
    needs_no_access_rule: bool
    stream: bool
    shows: tuple[str, str, bool]
    dry_run: bool
    other_statuses: Sequence[int]
    check_exists: Handler


class Actions:
    """The actions of one `…/action` path. The single key of the body names the action."""

    def __init__(self) -> None:
        self.by_name: dict[str, Route] = {}


class Api:
    """`prefix` is the mount point; `roots` are the path segments, such as `v2.1`, that precede its routes.

    A `strict` API checks a request in this order: accepts JSON (406), policy (403), content type (415), body (400).
    It answers 405 for a known path at every version.
    Without `trailing_slash`, a path that ends in a slash is not found. With `html_errors`, errors are HTML for clients
    that accept it and do not name JSON.
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
        html_errors: bool = False,
        version_header: str = "OpenStack-API-Version",
        version_pattern: re.Pattern[str] = _VERSION,
        strict: bool = False,
        body_types: Sequence[str] = (JSON,),
        trailing_slash: bool = True,
        messages: ErrorMessages = DEFAULT_MESSAGES,
        service_types: Sequence[str] = (),
        accepts_expired_tokens: bool = True,
    ) -> None:
        self.name = name
        # The types by which access rules name the service.
        self.service_types = frozenset(service_types or (name,))
        # Whether services may use the expired token of a user.
        self.accepts_expired_tokens = accepts_expired_tokens
        self.prefix = prefix
        self.errors = errors
        self.versioned_errors = versioned_errors
        self.html_errors = html_errors
        self.version_header, self.version_pattern = version_header, version_pattern
        self.strict = strict
        # Content types of JSON bodies.
        self.body_types = frozenset(body_types)
        self.trailing_slash = trailing_slash
        self.messages = messages
        self.major, self.low, self.high = major, low, high
        self.roots, self.frozen_roots = tuple(roots), tuple(frozen_roots)
        self.legacy_header = legacy_header
        self.request_id_header = request_id_header
        self.project_in_path = project_in_path
        # None: the limit of the configuration.
        self.body_limit = body_limit
        self.router: Router[Route | Actions] = Router()
        self.documents: Router[Route] = Router()
        self.document_routes: dict[str, Route] = {}
        self.fallback: Handler | None = None
        self.routes: dict[str, Route] = {}
        self.actions: dict[str, Actions] = {}
        self.views: dict[str, View] = {}
        self.microversions: list[Microversion] = []
        self.behaviours: set[Behaviour] = set()
        self.behaviours_at: dict[int, frozenset[Behaviour]] = {}
        self.compile([])

    # Declarations

    def route(self, method: str, path: str, **options: Unpack[RouteOptions]) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            declared = Route(method, path, handler, **options)
            self.router.add(method, path, declared)
            self._register(declared)
            return handler

        return declare

    def action(
        self, name: str, at: str = SERVER_ACTION, **options: Unpack[RouteOptions]
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            declared = Route("POST", at, handler, action=name, **options)
            declared.body = {
                "type": "object",
                "properties": {name: options.get("body", {"type": "null"})},
                "required": [name],
                "additionalProperties": False,
            }
            self._add_action(declared)
            self._register(declared)
            return handler

        return declare

    def add_alias(self, key: str, path: str) -> str:
        """Serve a route, or an action, at another path too. Returns the key of the new route."""
        declared = replace(self.routes[key], path=path, alias_of=key, versions=[])
        if declared.action is None:
            self.router.add(declared.method, path, declared)
        else:
            self._add_action(declared)
        self._register(declared)
        return declared.key

    def document(
        self, method: str, path: str, *, query: Mapping[str, Schema] | None = None, status: int = 200
    ) -> Callable[[Handler], Handler]:
        """Declare a version document: public, and not below a root.

        HEAD and OPTIONS are answered as GET: load balancers check services with them.
        """

        def declare(handler: Handler) -> Handler:
            declared = Route(method, path, handler, public=True, query=query, status=status)
            for answered in (method, "HEAD", "OPTIONS"):
                self.documents.add(answered, path, declared)
            self.document_routes[declared.key] = declared
            declared.versions = [RouteVersion(_draft(declared))] * (self.high - self.low + 1)
            return handler

        return declare

    def view(self, view: View) -> View:
        if view.name in self.views:
            raise ValueError(f"view {view.name} is declared twice")
        self.views[view.name] = view
        return view

    def behaviour(self, description: str) -> Behaviour:
        """Declare a behaviour that handlers check. One of the microversions must begin it."""
        declared = Behaviour(description)
        if declared in self.behaviours:
            raise ValueError(f"the behaviour {description!r} is declared twice")
        self.behaviours.add(declared)
        return declared

    def _add_action(self, declared: Route) -> None:
        assert declared.action is not None
        if declared.path not in self.actions:
            self.actions[declared.path] = Actions()
            self.router.add("POST", declared.path, self.actions[declared.path])
        self.actions[declared.path].by_name[declared.action] = declared

    def _register(self, declared: Route) -> None:
        if declared.key in self.routes:
            raise ValueError(f"{declared.key} is declared twice")
        self.routes[declared.key] = declared

    def for_hosts_only(self) -> Api:
        """A copy with the routes that need a ticket, after `compile`."""
        kept = copy(self)
        kept.router, kept.documents, kept.document_routes = Router(), Router(), {}
        kept.routes = {key: route for key, route in self.routes.items() if route.ticket}
        for route in kept.routes.values():
            kept.router.add(route.method, route.path, route)
        return kept

    # Compilation

    def compile(self, microversions: Sequence[Microversion]) -> None:
        """Compute all versions of every route and view, from the newest down."""
        self.microversions = sorted(microversions, key=lambda version: version.minor)
        by_minor = {version.minor: version for version in self.microversions}
        self._check_targets()
        self._compile_behaviours()
        for declared in self.routes.values():
            self._compile_route(declared, by_minor)
        for view in self.views.values():
            self._compile_view(view, by_minor)

    def _check_targets(self) -> None:
        for declared in self.routes.values():
            if declared.shows is not None and declared.shows[1] not in self.views:
                raise ValueError(f"{declared.key} shows the view {declared.shows[1]}, which is not declared")
        changes = [change for version in self.microversions for change in version.changes]
        for behaviour in self.behaviours.difference(change for change in changes if isinstance(change, Behaviour)):
            raise ValueError(f"no microversion begins the behaviour {behaviour.description!r}")
        for version in self.microversions:
            for change in version.changes:
                if isinstance(change, Behaviour) and change not in self.behaviours:
                    raise ValueError(f"microversion {version.number}: {self.name} has not declared {change}")
                if change.target and change.target not in self.routes:
                    raise ValueError(f"microversion {version.number}: there is no route {change.target}")
                if isinstance(change, ViewField):
                    for name in change.views:
                        if name not in self.views:
                            raise ValueError(f"microversion {version.number}: there is no view {name}")

    def _compile_behaviours(self) -> None:
        begun: set[Behaviour] = set()
        by_minor = {version.minor: version for version in self.microversions}
        for minor in range(self.low, self.high + 1):
            if minor in by_minor:
                begun |= {change for change in by_minor[minor].changes if isinstance(change, Behaviour)}
            self.behaviours_at[minor] = frozenset(begun)

    def _compile_route(self, declared: Route, by_minor: Mapping[int, Microversion]) -> None:
        draft = _draft(declared)
        draft.exists = self._exists_at_newest(declared)
        current: RouteVersion | None = None
        versions: list[RouteVersion | None] = []
        for minor in range(self.high, self.low - 1, -1):
            if draft.exists and current is None:
                current = RouteVersion(draft)
            versions.append(current if draft.exists else None)
            version = by_minor.get(minor)
            if version is not None:
                keys = (declared.key, declared.alias_of)
                changes = [change for change in version.changes if change.target and change.target in keys]
                for change in changes:
                    change.undo(draft)
                    if isinstance(change, Existence) and change.exists_below:
                        declared.status_above = change.status_without
                    elif isinstance(change, Existence):
                        declared.status_below = change.status_without
                if changes:
                    current = None
        declared.versions = versions[::-1]

    def _exists_at_newest(self, declared: Route) -> bool:
        """Whether the newest version has the route, that is, its last Existence change does not end it."""
        for version in reversed(self.microversions):
            for change in reversed(version.changes):
                if isinstance(change, Existence) and change.target == declared.key:
                    return not change.exists_below
        return True

    def _compile_view(self, view: View, by_minor: Mapping[int, Microversion]) -> None:
        fields = view.fields
        table = []
        for minor in range(self.high, self.low - 1, -1):
            table.append(fields)
            version = by_minor.get(minor)
            for change in version.changes if version else ():
                if isinstance(change, ViewField) and view.name in change.views:
                    fields = change.undo_fields(fields)
        view.low = self.low
        view.table = table[::-1]

    # Negotiation

    def negotiate(self, headers: Mapping[str, str]) -> int:
        """The minor version that the headers request; the lowest if they request none."""
        if not self.major:
            return self.low
        requested = self._requested_version(headers)
        if requested is None:
            return self.low
        if requested == "latest":
            return self.high
        numbers = self.version_pattern.fullmatch(requested)
        if numbers is None:
            raise BadRequest(self.messages.version_malformed(requested[:40]))
        # `int` refuses very long numbers; nine digits suffice to be out of range.
        major, minor = int(numbers[1][:9]), int(numbers[2][:9])
        if major != self.major or not self.low <= minor <= self.high:
            lowest, highest = f"{self.major}.{self.low}", f"{self.major}.{self.high}"
            raise VersionNotAcceptable(self.messages.version_unknown(requested[:40], lowest, highest))
        return minor

    def _requested_version(self, headers: Mapping[str, str]) -> str | None:
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
